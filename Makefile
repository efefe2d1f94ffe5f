# make demo   the main job, offline, in one go          make test   everything that must hold
# Works from any directory, whatever signs its path holds; needs no root and writes nothing outside its folder.
quoted = '$(subst ','\'',$(1))'
HERE  := $(shell printf %s $(call quoted,$(MAKEFILE_LIST)) | sed 's/^ //')
ROOT  := $(shell cd "$$(dirname $(call quoted,$(HERE)))" && pwd)
IN    := cd $(call quoted,$(ROOT)) &&
PY    := .venv/bin/python

export KINRANK_CACHE := $(ROOT)/.cache/kinrank
export PIP_CACHE_DIR := $(ROOT)/.cache/pip
export MPLCONFIGDIR  := $(ROOT)/.cache/matplotlib

.PHONY: demo test lint docs clean
demo:
	@$(IN) scripts/setup offline
	@$(IN) $(PY) -m kinrank demo

test:
	@$(IN) scripts/setup dev
	@$(IN) $(PY) -m ruff check .
	@$(IN) $(PY) -m ruff format --check .
	@$(IN) $(PY) -m mypy
	@$(IN) $(PY) -m pytest

lint:
	@$(IN) scripts/setup dev
	@$(IN) $(PY) -m ruff check --fix . && $(PY) -m ruff format . && $(PY) -m mypy

docs:
	@$(IN) scripts/setup dev
	@$(IN) $(PY) scripts/refresh_docs.py

clean:
	@$(IN) rm -rf .venv .cache demo-out build dist
