# admission_gate: built, installed and tested with PGXS.  `make help` lists what there is.

MODULE_big = admission_gate
EXTENSION = admission_gate
PGFILEDESC = "admission_gate - queues for hot spots, and a cap on the backends at work"
DATA = sql/admission_gate--1.0.sql

CORE = acquire at_work cpu_control cpu_limit expected hot_spots limit_control long_control long_queues pools views wait_queue
GATE = long_statements my_slot pool_parser process sampler settings snapshot wanted worker
OBJS = admission_gate.o $(CORE:%=src/core/%.o) $(GATE:%=src/%.o)

# pg_regress drops these roles at the beginning, as it does its database: no role is in both.
REGRESS = pools settings views
REGRESS_OPTS = --create-role=regress_gate_user,regress_gate_monitor
ISOLATION = fresh_snapshot
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --create-role=regress_gate_waiter
# These start servers of their own and take minutes: only TAP_TESTS=1 includes them.
PROVE_TESTS = test/t/*.pl

PG_CPPFLAGS = -I$(srcdir)/src
# What is hidden, and why: src/compat.h
PG_CFLAGS = -fvisibility=hidden -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers $(if $(WERROR),-Werror)
# No bitcode: nothing here is worth inlining into a query, and the names are hidden.
override with_llvm = no

here := $(dir $(lastword $(MAKEFILE_LIST)))
PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)
else
all install installdirs uninstall installcheck:
	@echo "'$(PG_CONFIG)' leads to no PostgreSQL build files." >&2
	@echo "Install them (Debian, Ubuntu: postgresql-server-dev-NN) or name another: make PG_CONFIG=/path/to/pg_config" >&2
	@echo "'make test', 'make demo' and 'make bench' find or install what they need." >&2
	@exit 1
clean:
	rm -f admission_gate.so $(OBJS) $(OBJS:.o=.bc)
endif

# Packaged PostgreSQL may not track them.  VPATH would find the sources' directory by a short name.
$(OBJS): $(wildcard $(here)src/*.h $(here)src/core/*.h) | $(CURDIR)/src/core
$(CURDIR)/src/core:
	mkdir -p $@

# Whatever the tests wait for, they fail if it does not come.  The shell that runs them
# checks the server first and cleans up last.
installcheck: export PGOPTIONS := -c statement_timeout=90s $(PGOPTIONS)
hash := \#
$(foreach name,pg_regress_installcheck pg_isolation_regress_installcheck,\
  $(eval $(name) = psql='$$(bindir)/psql'; . '$$(here)test/installcheck.sh' && $(subst $(hash),\$(hash),$(value $(name)))))

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## */\1\t/p' '$(here)Makefile' | expand -t 16
	@echo 'NAME=value adds a variable: PG_CONFIG=... for another PostgreSQL, WERROR=1 to take warnings for errors.'

all: ## build against the pg_config in PATH
install: ## install into that PostgreSQL
clean: ## remove what was built
installcheck: ## regression and isolation tests on a running server that preloads the library, in seconds
test: ## from nothing to green in a throw-away directory, in minutes: see test/run.sh
	@$(here)test/run.sh
test-full: ## all tests there are, in hours
	@status=0; \
	$(here)test/lint.sh || status=1; \
	TESTS='regress isolation tap simulator model mutants neighbours drivers' MODEL=all \
	  GATE_CHAOS_SECONDS="$${GATE_CHAOS_SECONDS:-600}" $(here)test/run.sh || status=1; \
	TESTS='regress isolation tap' $(here)test/matrix || status=1; \
	VALGRIND=1 $(here)test/run.sh || status=1; \
	exit $$status
matrix: ## test every version, from Debian or Ubuntu: see test/matrix
	@$(here)test/matrix
neighbours: ## test beside other extensions, pgbouncer and Patroni, which it installs
	@TESTS=neighbours $(here)test/run.sh
drivers: ## test real drivers, or DRIVERS="...", from their registries: see test/drivers
	@TESTS=drivers $(here)test/run.sh
lint: ## other compilers, checkers, and whether `make format` would change anything: see test/lint.sh
	@$(here)test/lint.sh
layers: all ## build, and show which source file uses which: see test/layers.pl
	@$(here)test/layers.pl '$(CURDIR)'
format: ## lay out the C, Perl and Python files anew, in place
	@FORMAT=1 $(here)test/lint.sh
demo: ## measure what the gate changes on this machine: see bench/driver/demo.py
	@BENCH=demo $(here)bench/run.sh
bench: ## every measurement, or BENCH="...": see bench/run.sh
	@$(here)bench/run.sh
dist: ## the archives of a release and their SHA256 sums, from the last commit: always the same bytes
	@name=admission_gate-`perl -MJSON::PP -0ne 'print decode_json($$_)->{version}' '$(here)META.json'`; \
	git -C '$(here)' diff --quiet HEAD || echo "Changes that are not committed are left out." >&2; \
	for file in $$name.tar.gz $$name.zip; do \
	  TZ=UTC git -C '$(here)' archive --prefix=$$name/ --output='$(CURDIR)'/$$file HEAD && echo $$file || exit 1; done; \
	sha256sum $$name.tar.gz $$name.zip >$$name.sha256 && echo $$name.sha256

.PHONY: all install installdirs uninstall installcheck clean help test test-full matrix neighbours drivers lint layers format demo bench dist
