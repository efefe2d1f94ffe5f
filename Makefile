# make demo   the main job, offline, in one go          make test   everything that must hold
# Works from any directory and with spaces in the path; neither needs root.
ROOT := $(shell cd "$$(dirname '$(strip $(MAKEFILE_LIST))')" && pwd)
IN   := cd "$(ROOT)" &&
PY   := .venv/bin/python

.PHONY: demo test lint bench clean
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

clean:
	@$(IN) rm -rf .venv demo-out build dist
