# Proves that the timer by which statements are found to be long runs only in sessions that
# need it, and that what another module has put into the nodes of a plan stays there.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new('long_timer', max_active_backends => 2, long_after => 50);
$gate->value('CREATE TABLE numbers AS SELECT i FROM generate_series(1, 5000) i');

SKIP:
{
	# SIGPROF is signal 27.
	skip 'no /proc', 5 unless -e '/proc/self/status' && `uname -sm` =~ /^Linux (?:x86_64|aarch64)/;
	foreach my $case (
		[ 'with statements that can be long' => {}, {}, 1 ],
		[ 'that bypasses' => {}, { 'admission_gate.bypass' => 'on' } ],
		[ 'of a pool with a limit' => { pools => 'apart: max_active=3' }, { 'admission_gate.pool' => 'apart' } ],
		[ 'without a limit' => { max_active_backends => -1 }, {} ],
		[ 'with long_after = -1' => { max_active_backends => 2, long_after => -1 }, {} ])
	{
		my ($what, $settings, $own, $has) = @$case;
		$gate->set(%$settings);
		my $session = $gate->session(session => $own);
		$session->query('SELECT count(*) FROM numbers');
		my ($caught) = slurp_file('/proc/' . $session->pid . '/status') =~ /^SigCgt:\s*(\w+)/m;
		is(!!(hex(substr $caught, -8) & 1 << 26), !!$has, 'has a timer ' . ($has ? '' : 'not ') . ": a session $what");
	}
	$gate->set(long_after => 50, pools => '');
}

# In a session that goes on, the timer stops where no statement can be long, and starts again.
{
	my ($long, $short) = map { $gate->session } 1 .. 2;
	my $pairs = 'SELECT count(*) FROM numbers a, numbers b WHERE a.i <';
	$gate->set(max_active_backends => 1, long_after => 50);
	$long->query("$pairs 20");
	$gate->set(long_after => -1);
	$long->query("$pairs 1000");    # some ticks
	$gate->set(long_after => 50);
	$long->start("$pairs 100000");
	$gate->ok_comes(
		sub {
			$short->start('SELECT 1') if $short->done;
			$gate->state($long) eq 'paused';
		},
		'a statement is long again in a session whose timer had stopped');
	$long->stop;
	$short->finish;
	$gate->set(max_active_backends => 2);
}

my $counting_module = <<'END';
#include "postgres.h"
#include "executor/executor.h"
#include "fmgr.h"
PG_MODULE_MAGIC;
extern PGDLLEXPORT void _PG_init(void);
static ExecutorStart_hook_type next_start;
static long calls;

static TupleTableSlot *
count_call(PlanState *node)
{
	calls++;
	return node->ExecProcNodeReal(node);
}

static void
start(QueryDesc *query, int eflags)
{
	PlanState  *node;

	next_start(query, eflags);
	for (node = query->planstate; outerPlanState(node) != NULL; node = outerPlanState(node))
		 /* to the first leaf */ ;
	node->ExecProcNode = count_call;
}

static void
end(QueryDesc *query)
{
	elog(INFO, "%ld calls", calls);
	standard_ExecutorEnd(query);
}

void
_PG_init(void)
{
	next_start = ExecutorStart_hook;	/* the gate's */
	ExecutorStart_hook = start;
	ExecutorEnd_hook = end;
}
END

SKIP:
{
	my $module = PostgreSQL::Test::Utils::tempdir() . '/counts_calls';
	my $headers = $gate->node->config_data('--includedir-server');
	append_to_file("$module.c", $counting_module);
	chmod 0755, $module =~ s{/[^/]*$}{}r;
	skip 'no C compiler', 1 if system("cc -shared -fPIC -w -I '$headers' -o '$module.so' '$module.c' 2>&1") != 0;

	$gate->set(long_after => 0);
	my $err;
	$gate->node->psql('postgres', "LOAD '$module'; SELECT count(*) FROM numbers", stderr => \$err);
	like($err, qr/INFO:  5001 calls/, 'the function that another module has put into a node is called');
}

$gate->finish;
