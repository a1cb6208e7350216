# Everything a newcomer needs. The first target that needs it makes the environment.
#
#   make run      serve the embedded demo model and complete PROMPT
#   make test     the whole suite
#   make exhaustive   what the suite leaves out: more cases of what others of the same test show
#   make check    what continuous integration runs besides: stubs, ruff, mypy, buf
#   make protos   generate the stubs and the SDK's reference after a change of protos/ or of the SDK
#   make chaos    break both services in every way while streams run, ROUNDS times; nothing may be lost
#   make soak     both services and the HTTP door under mixed traffic for MINUTES: fails where memory grows or something is not returned
#   make hostile  what others wait behind requests that were made to hold them up; on a machine that does nothing else
#   make alerts   alerts fire for their causes in a real Prometheus, and no others; twenty minutes
#   make fuzz     requests, files, templates, sizes and settings of models drawn by chance for MINUTES; SEED=7 draws the same ones again
#   make images   build the images for a registry and push them: REGISTRY, VERSION, PLATFORMS, BASE
#   make images-test    make images with a registry and an engine of its own, and look at what was pushed
#   make apiserver-test   apply the manifests and the chart to a Kubernetes API server: APISERVER_FLAGS="--crds FOLDER"
#   make compose-test   build the images, bring the stack up in a container engine of its own, ask it, take it down

VENV ?= .venv
PYTHON ?= python3
MODEL ?= models/demo
PROMPT ?= First Citizen:
ROUNDS ?= 100
MINUTES ?= 3

# Through the environment, so that quotes and dollars in a prompt stay what they are.
export MODEL PROMPT

STAMP := $(VENV)/.installed
C_FILES = $(shell find svc_common tokenizer_svc worker_svc -name '*.[ch]')
BIN := $(VENV)/bin

.PHONY: run test exhaustive check lint types protos fresh buf chaos soak hostile alerts fuzz parsers conformance compose-test images images-test apiserver-test clean

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) --constraint constraints.txt

# What `venv` writes last.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# The stamp is written last: an interrupted installation is begun again.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $(STAMP)

run: $(STAMP)
	@$(BIN)/tandem run --model "$$MODEL" "$$PROMPT"

# The slowest test takes less than a minute of an idle machine.
test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder --timeout 300

exhaustive: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder -m exhaustive

# Types take longest: they come first, and the others beside them.
check: types fresh lint buf

fresh: $(STAMP)
	$(BIN)/python protos/generate.py --check
	$(BIN)/python deploy/dashboards.py --check
	$(BIN)/python deploy/chart.py --check
	$(BIN)/python docs/reference.py --check
	$(BIN)/python docs/architectures.py --check

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/python docs/samples.py

# buf comes from npm; where there is none, the rules are not checked, and that is said loudly.
buf:
	@if command -v npm >/dev/null; then \
	    npm install --silent --no-audit --no-fund --prefix .buf @bufbuild/buf@1 >/dev/null && cd protos && ../.buf/node_modules/.bin/buf lint && echo "buf lint: clean"; \
	else \
	    echo "SKIPPED: buf lint, because npm is not installed" >&2; \
	fi

protos: $(STAMP)
	$(BIN)/python protos/generate.py
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/architectures.py

# Kills, stops, starves and cuts off both services while streams run: CHAOS_FLAGS='--only network --json chaos.json'.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --rounds $(ROUNDS) $(CHAOS_FLAGS)

compose-test: $(STAMP)
	$(BIN)/python deploy/compose_test.py $(COMPOSE_TEST_FLAGS)

# The base by its digest, which a tag may change between two builds.
BASE ?= python:3.12-slim-bookworm
PLATFORMS ?= linux/amd64
VERSION ?= dev
# generator=IMAGE: another one than Docker's lists what is in them
SBOM ?= true
images:
	@test -n "$(REGISTRY)" || { echo "REGISTRY is missing: make images REGISTRY=registry.example/ VERSION=0.1.0" >&2; exit 2; }
	set -e; base="$(BASE)"; case "$$base" in *@*) ;; *) \
	    digest=$$(docker buildx imagetools inspect "$$base" --format '{{json .Manifest.Digest}}' | tr -d '"'); \
	    case "$$digest" in sha256:*) base="$$base@$$digest";; *) echo "$$base has no digest: $$digest" >&2; exit 1;; esac;; \
	esac; \
	for own in tokenizer worker http gateway; do \
	    docker buildx build --push --platform $(PLATFORMS) --sbom=$(SBOM) --provenance=mode=max \
	        --build-arg BASE="$$base" --build-arg VERSION=$(VERSION) --build-arg REVISION="$$(git rev-parse HEAD)" \
	        --file deploy/docker/$$own.Dockerfile --tag $(REGISTRY)tandem-$$own:$(VERSION) .; \
	done

# As compose-test, this makes an engine of its own where it may: IMAGES_TEST_FLAGS=--install.
images-test: $(STAMP)
	$(BIN)/python deploy/images_test.py $(IMAGES_TEST_FLAGS)

# etcd and kube-apiserver from the PATH, or --etcd FILE --kube-apiserver FILE.
apiserver-test: $(STAMP)
	$(BIN)/python deploy/apiserver_test.py $(APISERVER_FLAGS)

soak: $(STAMP)
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

hostile: $(STAMP)
	$(BIN)/python benchmarks/hostile.py --check --no-save

# Debian's package prometheus has the program; ALERTS_FLAGS='--prometheus PATH' names another, '--only drained' one cause.
alerts: $(STAMP)
	$(BIN)/python -m tests.alerts $(ALERTS_FLAGS)

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(FUZZ_FLAGS)

# Every format of answers: the same events in any cut, nothing lost of what is broken.
parsers: $(STAMP)
	$(BIN)/python -m tests.tokenizer_svc.answers.fuzz --cuts $(or $(CUTS),10000) --mutated $(or $(MUTATED),1000)

# LiteLLM, lm-eval and guidellm, in environments of their own, against the demo model behind the HTTP door, and lm-eval
# behind smg.
conformance: $(STAMP)
	test -x .conformance/bin/lm_eval || (python3 -m venv .conformance && .conformance/bin/pip install -q litellm mcp 'lm_eval[api]' smg)
	test -x .conformance/guidellm/bin/guidellm || (python3 -m venv .conformance/guidellm && .conformance/guidellm/bin/pip install -q guidellm)
	PATH="$(CURDIR)/.conformance/bin:$$PATH" HF_DATASETS_OFFLINE=1 HF_HOME=$(CURDIR)/.conformance/cache $(BIN)/python -m tests.conformance $(CURDIR)/.conformance/bin/python

clean:
	rm -rf $(VENV) .buf .conformance
