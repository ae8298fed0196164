# Needs Python >= 3.11 with pip and venv, and make; everything else is downloaded. Stamp files in .venv avoid repeated work.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install serve test pytest checks bench chaos docs lint style types guest fmt lock wheel wheel-check clean

# Let Python cache the compiled tests.
unexport PYTHONDONTWRITEBYTECODE

PYTHON = $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ENV = .venv
PIP = $(ENV)/bin/python -m pip --disable-pip-version-check --quiet --no-input
DENO = DENO_DIR="$${DENO_DIR:-$(CURDIR)/build/deno}" \
	DENO_TLS_CA_STORE="$${DENO_TLS_CA_STORE:-mozilla,system}" "$(CURDIR)/$(ENV)/bin/deno"
# The folders of TypeScript, each with its own deno.json and lock file.
GUEST := src/hutch/guest
CONSOLE := src/hutch/console/web

PYTHON_SOURCES := $(shell find src/hutch -name '*.py')
BUNDLE_SOURCES := $(shell find $(GUEST) $(CONSOLE) \( -name dist -o -name tests \) -prune -o -type f -print)
# Written last.
BUNDLE := src/hutch/console/dist/.sources

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

install: .venv/.compiled $(BUNDLE) .venv/.jail ## create .venv with all dependencies, the bundles and .venv/bin/hutch
	@command -v bwrap >/dev/null || echo "note: bubblewrap is not installed, so Hutch uses weaker isolation" \
		"(only Deno's permissions and limits); 'apt install bubblewrap' enables the stronger one" >&2

serve: install ## run the server with example tools for the playground; options in ARGS
	@exec .venv/bin/hutch serve --examples $(ARGS)

test: install .venv/.postgres .venv/.curl .venv/.chromium .venv/.iproute style ## lint, type checks, Python tests and guest tests
	@$(MAKE) --no-print-directory --jobs=2 --keep-going pytest checks

# Two processes per core, at most 8: tests often wait, but those with timing need some of the processor.
pytest: install
	.venv/bin/python -m pytest --processes $$(n=$$(nproc); echo $$((n < 4 ? 2 * n : 8))) $(ARGS)

# Runs in parallel with the Python tests; its output is printed at the end.
checks:
	@mkdir -p build; $(MAKE) --no-print-directory types guest >build/checks.log 2>&1; \
		status=$$?; cat build/checks.log; exit $$status

bench: install .venv/.bench ## measure speed and size against baselines
	.venv/bin/python -m bench $(ARGS)

chaos: install .venv/.postgres .venv/.iproute ## kill machines of a cluster at random for two minutes; options in ARGS
	.venv/bin/python -m tests.cluster.chaos $(ARGS)

docs: install .venv/.docs ## build the documentation site in build/site
	@.venv/bin/python -m docs.site

lint: style types ## ruff, mypy, and deno fmt, lint and check

style: install
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	cd $(GUEST) && $(DENO) fmt --check --quiet && $(DENO) lint --quiet
	cd $(CONSOLE) && $(DENO) fmt --check --quiet && $(DENO) lint --quiet

types: install
	.venv/bin/mypy
	cd $(GUEST) && $(DENO) check --frozen --quiet .
	cd $(CONSOLE) && $(DENO) check --frozen --quiet .

guest: install
	cd $(GUEST) && $(DENO) test --allow-all --frozen --quiet --reporter=dot

fmt: install ## format Python and TypeScript
	.venv/bin/ruff check --fix-only --quiet
	.venv/bin/ruff format
	cd $(GUEST) && $(DENO) fmt
	cd $(CONSOLE) && $(DENO) fmt

lock: ENV = build/lock
lock: ## update requirements.lock to the newest allowed versions, and each deno.lock from its deno.json
	rm -rf $(ENV) && $(PYTHON) -m venv $(ENV)
	$(PIP) install hatchling setuptools wheel deno==$(shell sed -n 's/^ *"deno==\(.*\)",$$/\1/p' pyproject.toml)
	cd $(GUEST) && $(DENO) install --frozen=false
	cd $(CONSOLE) && $(DENO) install --frozen=false
	$(PIP) install --no-build-isolation -e '.[dev,bench,docs]'
	{ echo "# Written by 'make lock'; 'make install' uses these versions."; $(PIP) freeze --exclude-editable; } > $(ENV)/new
	mv $(ENV)/new requirements.lock && rm -rf $(ENV)

wheel: private ENV = build/wheel
wheel: install ## build what would be uploaded to PyPI into dist, and check it
	rm -rf dist $(ENV) && $(PYTHON) -m venv $(ENV)
	$(PIP) install twine==7.0.0
	.venv/bin/python -m hatchling build
	$(ENV)/bin/twine check --strict dist/*
	rm -rf $(ENV)

wheel-check: ENV = build/fresh
wheel-check: ## install the wheel in a new environment and run it from another folder
	rm -rf $(ENV) && $(PYTHON) -m venv $(ENV)
	$(PIP) install .
	cd / && test "$$("$(CURDIR)/$(ENV)/bin/hutch" eval '1+1')" = 2
	rm -rf $(ENV)

clean: ## remove everything that was built
	rm -rf .venv build dist src/hutch/guest/dist src/hutch/console/dist .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The scripts of an environment contain absolute paths, so one that was moved has to be created again.
ifneq "$(shell cat .venv/.made 2>/dev/null)" "$(CURDIR)"
.PHONY: .venv/.made
endif
.venv/.made:
	@test -n "$(PYTHON)" || { echo "Hutch needs Python 3.11 or newer, but none was found." \
		"Install it (Debian, Ubuntu: apt install python3 python3-venv) or set its path: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv --clear .venv || { echo "$(PYTHON) cannot create a virtual environment." \
		"On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@printf %s "$(CURDIR)" > $@

# nkeys is built from its source, which needs setuptools and wheel.
.venv/.installed: .venv/.made pyproject.toml requirements.lock hatch_build.py
	@echo "installing the dependencies and building the guest bundle and the web console"
	@$(PIP) install -c requirements.lock hatchling deno setuptools wheel
	@$(PIP) install -c requirements.lock --no-build-isolation -e '.[dev]'
	@touch $@

# pip does not rebuild an editable install when the TypeScript changes.
$(BUNDLE): .venv/.installed $(BUNDLE_SOURCES)
	@.venv/bin/python hatch_build.py
	@touch $@

# Keeps `import hutch` fast where PYTHONDONTWRITEBYTECODE is set.
.venv/.compiled: .venv/.installed $(PYTHON_SOURCES)
	@.venv/bin/python -m compileall -q src/hutch
	@touch $@

.venv/.bench: .venv/.installed
	@echo "installing what the benchmarks compare with"
	@$(PIP) install -c requirements.lock --no-build-isolation -e '.[bench]'
	@touch $@

.venv/.docs: .venv/.installed
	@echo "installing what builds the documentation site"
	@$(PIP) install -c requirements.lock --no-build-isolation -e '.[docs]'
	@touch $@

# Tried once; if it fails, `install` prints a note.
.venv/.jail: .venv/.made
	@command -v bwrap >/dev/null || { $(call apt,bubblewrap); }
	@touch $@

# The tests start their own PostgreSQL and fail without its programs.
.venv/.postgres: .venv/.made
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(call apt,postgresql); }
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "the tests need" \
		"PostgreSQL's programs, which could not be installed: run 'apt install postgresql' or put 'initdb' on PATH" >&2; exit 1; }
	@touch $@

# The tests run the curl commands of the examples and of the output of `hutch serve`.
.venv/.curl: .venv/.made
	@command -v curl >/dev/null || { $(call apt,curl); }
	@command -v curl >/dev/null || { echo "the tests need curl, which could not be installed: run 'apt install curl'" >&2; exit 1; }
	@touch $@

# The tests of the web console use a real browser.
.venv/.chromium: .venv/.made
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { $(call apt,chromium fonts-dejavu-core); }
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "the tests need Chromium," \
		"which could not be installed: run 'apt install chromium'" >&2; exit 1; }
	@touch $@

# The tests of clusters run machines in network namespaces.
.venv/.iproute: .venv/.made
	@command -v ip >/dev/null || { $(call apt,iproute2); }
	@command -v ip >/dev/null || { echo "the tests need the program ip, which could not be installed:" \
		"run 'apt install iproute2'" >&2; exit 1; }
	@touch $@

# Installs packages if that needs no password; otherwise does nothing.
define apt
if command -v apt-get >/dev/null \
		&& { [ "$$(id -u)" = 0 ] && as= || { sudo -n true 2>/dev/null && as='sudo -n'; }; }; then \
		echo "installing $(1)"; mkdir -p build; \
		apt="$$as env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20"; \
		{ $$apt update; $$apt install --yes --no-install-recommends $(1); } >build/apt.log 2>&1 \
			|| echo "apt could not install $(1): see build/apt.log" >&2; \
	fi
endef
