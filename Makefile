# admission_gate: build, install and test with PGXS.
#
#   make                  build against the pg_config in PATH (PG_CONFIG=... for another)
#   make install          install into that PostgreSQL
#   make installcheck     regression and isolation tests against a running server that
#                         preloads the library and sets no more of it, in seconds
#   make test             from nothing to green in a throw-away directory, in minutes: see
#                         test/run.sh
#   make test-full        everything there is, in hours: see test/full.sh
#   make matrix           the same on every version, from Debian or Ubuntu: see test/matrix
#   make neighbours       test beside other extensions, poolers and Patroni, which it
#                         installs: see docs/poolers_and_clusters.md
#   make drivers          test real drivers, each from its own registry, or DRIVERS="...": see
#                         docs/applications.md and test/drivers/run.sh
#   make soak             everything at once on one server, for SOAK minutes, default 10:
#                         see test/soak/soak.pl
#   make lint             other compilers, checkers, and the formatters, which change nothing
#                         here: see test/lint.sh
#   make layers           build, and show which source file uses which: see test/layers.pl
#   make format           lay out the C, Perl and Python files anew, in place: likewise
#   make valgrind         regression and isolation tests in valgrind: see test/valgrind.sh
#   make demo             measure what the gate changes on this machine: see bench/demo.sh
#   make bench            every measurement, or BENCH="...": see bench/run.sh
#   make dist             the archives of a release, from the last commit
#   make clean
#
# WERROR=1 turns compiler warnings into errors; `make test` sets it.

MODULE_big = admission_gate
EXTENSION = admission_gate
PGFILEDESC = "admission_gate - limits how many backends work at once"

# PGXS learns the place of the sources only when it is included, so a build
# outside the source tree (make -f .../Makefile) needs it from here.
here := $(dir $(lastword $(MAKEFILE_LIST)))
names = $(sort $(patsubst $(here)$(1),$(2),$(wildcard $(here)$(1))))
stems = $(basename $(notdir $(call names,$(1),$(1))))

OBJS = admission_gate.o $(patsubst %,src/core/%.o,$(call stems,src/core/*.c)) $(patsubst %,src/%.o,$(call stems,src/*.c))
DATA = $(patsubst %,sql/%.sql,$(call stems,sql/admission_gate--*.sql))

# sql/ holds the extension's scripts and the pg_regress scripts side by side.
REGRESS = $(filter-out admission_gate--%,$(call stems,sql/*.sql))
ISOLATION = $(call stems,test/isolation/specs/*.spec)
# pg_regress drops these roles at the beginning, as it does its database: no role is in both.
REGRESS_OPTS = --create-role=regress_gate_user,regress_gate_monitor
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --create-role=regress_gate_waiter
# The TAP files start servers of their own and take minutes, so installcheck leaves them
# out: TAP_TESTS=1 includes them, as test/run.sh does.
PROVE_TESTS = test/t/*.pl
NEIGHBOURS ?= test/neighbours/*.pl

PG_CPPFLAGS = -I$(srcdir)/src
# What is hidden, and why: src/compat.h
PG_CFLAGS = -fvisibility=hidden -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
ifdef WERROR
PG_CFLAGS += -Werror
endif

# No bitcode for the JIT compiler: nothing here is worth inlining into a query, and what
# was inlined might look for names that are hidden.
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)
else
# Without PostgreSQL's build files only these work: test, demo and bench fetch
# what they need by themselves.
all install installdirs uninstall installcheck:
	@echo "'$(PG_CONFIG)' leads to no PostgreSQL build files." >&2
	@echo "Install them (Debian, Ubuntu: postgresql-server-dev-NN) or name another: make PG_CONFIG=/path/to/pg_config" >&2
	@echo "'make test', 'make demo' and 'make bench' find or install what they need." >&2
	@exit 1
clean:
	rm -f admission_gate.so *.o *.bc src/*.o src/*.bc src/core/*.o src/core/*.bc
.PHONY: all install installdirs uninstall installcheck clean
endif

# Packaged PostgreSQL is often built without dependency tracking.
$(OBJS): $(wildcard $(here)src/*.h $(here)src/core/*.h) | $(CURDIR)/src/core

# An absolute name, as VPATH would find the sources' src/ instead.
$(CURDIR)/src/core:
	mkdir -p $@

# Whatever the tests wait for, they fail if it does not come.
installcheck: export PGOPTIONS := -c statement_timeout=90s $(PGOPTIONS)
# The shell that runs them checks the server first and cleans up last.
guarded = psql='$(bindir)/psql'; . '$(here)test/installcheck.sh' &&
hash := \#
$(foreach name,pg_regress_installcheck pg_isolation_regress_installcheck,\
  $(eval $(name) = $$(guarded) $(subst $(hash),\$(hash),$(value $(name)))))

test:
	@$(here)test/run.sh

test-full:
	@$(here)test/full.sh

lint:
	@$(here)test/lint.sh

layers: all
	@$(here)test/layers.pl '$(CURDIR)'

format:
	@FORMAT=1 $(here)test/lint.sh

matrix:
	@$(here)test/matrix

neighbours:
	@TESTS=neighbours $(here)test/run.sh

drivers:
	@$(here)test/drivers/run.sh

soak:
	@TESTS=soak $(here)test/run.sh

valgrind:
	@VALGRIND=1 $(here)test/run.sh

demo:
	@$(here)bench/demo.sh

bench:
	@$(here)bench/run.sh

# The same bytes for the same commit: git takes the times from it.
dist:
	@name=admission_gate-`perl -MJSON::PP -0ne 'print decode_json($$_)->{version}' '$(here)META.json'`; \
	git -C '$(here)' diff --quiet HEAD || echo "Changes that are not committed are left out." >&2; \
	for format in tar.gz zip; do \
	  TZ=UTC git -C '$(here)' archive --prefix="$$name/" --output='$(CURDIR)'/"$$name.$$format" HEAD && \
	  echo "$$name.$$format" || exit 1; \
	done

# print-NAME shows a variable: the scripts ask for the lists above.
print-%:
	@echo $($*)

.PHONY: test test-full matrix neighbours drivers soak lint layers format valgrind demo bench dist
