{{/* Further variables of a container. Numbers as JSON has them: as a text a large one would be 1.6e+07. */}}
{{- define "tandem.env" }}
{{- range $name, $value := . }}
            - name: {{ $name | quote }}
              value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
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
{{/* The workers that run: their number is the autoscaler's. Left out of a chart that had it, it would become 1. */}}
{{- define "tandem.replicas" }}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace "tandem-worker" }}
  replicas: {{ .spec.replicas }}
{{- end }}
{{- end }}
