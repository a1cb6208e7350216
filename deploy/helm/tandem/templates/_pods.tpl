{{/* Further variables of a container. */}}
{{- define "tandem.env" }}
{{- range $name, $value := . }}
            - name: {{ $name }}
              value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{/* What a pod has of the values beside its containers. */}}
{{- define "tandem.pod" }}
{{- with (index . 0).Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with (index . 1).nodeSelector }}
      nodeSelector: {{ toJson . }}
{{- end }}
{{- end }}
