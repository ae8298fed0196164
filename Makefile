# A checkout needs Python >= 3.11 with pip and venv, and make; the rest is fetched. Stamps in .venv keep second runs short.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install serve test pytest beside bench lint style types guest fmt lock wheel-check clean

# Tests are compiled once, not by every process of every run.
unexport PYTHONDONTWRITEBYTECODE

PYTHON = $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ENV = .venv
PIP = $(ENV)/bin/python -m pip --disable-pip-version-check --quiet --no-input
DENO = cd src/hutch/guest && DENO_DIR="$${DENO_DIR:-$(CURDIR)/build/deno}" \
	DENO_TLS_CA_STORE="$${DENO_TLS_CA_STORE:-mozilla,system}" "$(CURDIR)/$(ENV)/bin/deno"

PYTHON_SOURCES := $(shell find src/hutch -name '*.py')
GUEST_SOURCES := $(shell find src/hutch/guest \( -name dist -o -name tests \) -prune -o \
	\( -name '*.ts' -o -name 'deno.*' \) -type f -print)
BUNDLE := src/hutch/guest/dist/.sources

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

install: .venv/.compiled $(BUNDLE) .venv/.jail ## .venv with every dependency, the guest bundle and .venv/bin/hutch
	@command -v bwrap >/dev/null || echo "note: no bubblewrap, so Hutch falls back to its weaker isolation" \
		"(Deno's permissions and limits only); 'apt install bubblewrap' gives it the stronger one" >&2

serve: install ## the server; its own options in ARGS
	@exec .venv/bin/hutch serve $(ARGS)

test: install .venv/.postgres .venv/.curl style ## lint, types, the Python tests and the guest's own
	@$(MAKE) --no-print-directory --jobs=2 --keep-going pytest beside

# One more at once than there are cores, 8 at most: a good part of their time tests wait, but what is timed
# needs some room.
pytest:
	.venv/bin/python -m pytest -n $$(n=$$(nproc); echo $$((n < 7 ? n + 1 : 8))) --dist loadfile --no-loadscope-reorder $(ARGS)

# The rest goes on beside the Python tests, and is told in one piece.
beside:
	@mkdir -p build; $(MAKE) --no-print-directory types guest >build/beside.log 2>&1; \
		status=$$?; cat build/beside.log; exit $$status

bench: install ## how fast and how small, beside baselines
	.venv/bin/python -m bench $(ARGS)

lint: style types ## ruff, mypy; deno fmt, lint and check

style: install
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	$(DENO) fmt --check --quiet
	$(DENO) lint --quiet

types: install
	.venv/bin/mypy
	$(DENO) check --frozen --quiet .

guest: install
	$(DENO) test --allow-all --frozen --quiet --reporter=dot

fmt: install ## formats Python and TypeScript
	.venv/bin/ruff check --fix-only --quiet
	.venv/bin/ruff format
	$(DENO) fmt

lock: ENV = build/lock
lock: ## newest allowed versions into requirements.lock; what deno.json asks for into the guest's deno.lock
	rm -rf $(ENV) && $(PYTHON) -m venv $(ENV)
	$(PIP) install hatchling deno==$(shell sed -n 's/^ *"deno==\(.*\)",$$/\1/p' pyproject.toml)
	$(DENO) install --frozen=false
	$(PIP) install --no-build-isolation -e '.[dev]'
	{ echo "# Written by 'make lock'; 'make install' holds to it."; $(PIP) freeze --exclude-editable; } > $(ENV)/new
	mv $(ENV)/new requirements.lock && rm -rf $(ENV)

wheel-check: ENV = build/fresh
wheel-check: ## installs the wheel as a user would, in a new environment, and runs it from elsewhere
	rm -rf $(ENV) && $(PYTHON) -m venv $(ENV)
	$(PIP) install .
	cd / && test "$$("$(CURDIR)/$(ENV)/bin/hutch" eval '1+1')" = 2
	rm -rf $(ENV)

clean: ## removes all that was made here
	rm -rf .venv build dist src/hutch/guest/dist .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was made elsewhere and moved here would run the wrong code: its scripts hold paths.
ifneq "$(shell cat .venv/.made 2>/dev/null)" "$(CURDIR)"
.PHONY: .venv/.made
endif
.venv/.made:
	@test -n "$(PYTHON)" || { echo "Hutch needs Python 3.11 or newer, and none was found." \
		"Install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making .venv with $(PYTHON)"
	@$(PYTHON) -m venv --clear .venv || { echo "$(PYTHON) cannot make a virtual environment." \
		"On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@printf %s "$(CURDIR)" > $@

.venv/.installed: .venv/.made pyproject.toml requirements.lock hatch_build.py
	@echo "installing the dependencies and building the guest bundle"
	@$(PIP) install -c requirements.lock hatchling deno
	@$(PIP) install -c requirements.lock --no-build-isolation -e '.[dev]'
	@touch $@

# An editable install does not notice that the guest's TypeScript has changed.
$(BUNDLE): .venv/.installed $(GUEST_SOURCES)
	@.venv/bin/python hatch_build.py
	@touch $@

# So that `import hutch` is quick also where PYTHONDONTWRITEBYTECODE is set.
.venv/.compiled: .venv/.installed $(PYTHON_SOURCES)
	@.venv/bin/python -m compileall -q src/hutch
	@touch $@

# Tried once; whoever may not install it is told by `install`.
.venv/.jail: .venv/.made
	@command -v bwrap >/dev/null || { $(call apt,bubblewrap); }
	@touch $@

# The tests start a PostgreSQL of their own. Tried until it is there: they fail without its programs.
.venv/.postgres: .venv/.made
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(call apt,postgresql); }
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "the tests need" \
		"PostgreSQL's programs and may not install them: 'apt install postgresql', or another way to 'initdb'" >&2; exit 1; }
	@touch $@

# The tests run the line that `hutch serve` announces, and the examples, as a shell does.
.venv/.curl: .venv/.made
	@command -v curl >/dev/null || { $(call apt,curl); }
	@command -v curl >/dev/null || { echo "the tests need curl and may not install it: 'apt install curl'" >&2; exit 1; }
	@touch $@

# Installs a package where that is allowed without a question; where not, nothing happens.
define apt
if command -v apt-get >/dev/null \
		&& { [ "$$(id -u)" = 0 ] && as= || { sudo -n true 2>/dev/null && as='sudo -n'; }; }; then \
		echo "installing $(1)"; mkdir -p build; \
		apt="$$as env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20"; \
		{ $$apt update; $$apt install --yes --no-install-recommends $(1); } >build/apt.log 2>&1 \
			|| echo "apt could not install $(1): see build/apt.log" >&2; \
	fi
endef
