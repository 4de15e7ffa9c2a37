# Proves that long statements give their slots up, pause while short ones work, and go on
# all the same; that they leave nothing behind, however they end; and what is not paused.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

GateTest::use_two_cpus();
my $gate = GateTest->new(
	'long_statements',
	max_active_backends => 2,
	long_after => 50,
	lend_after => 60_000,
	max_connections => 60,
	max_parallel_workers_per_gather => 0,
	log_statement => 'none');

$gate->value('CREATE TABLE numbers AS SELECT i FROM generate_series(1, 3000) i');
$gate->value('ANALYZE numbers');
$gate->value('CREATE TABLE sale (id int PRIMARY KEY, sold int)');
$gate->value('INSERT INTO sale SELECT id, 0 FROM generate_series(1, 1000) id');

# Reads rows for ever, and for long
my $endless = 'SELECT count(*) FROM numbers a, numbers b, numbers c';
my $long = 'SELECT count(*) FROM numbers a, numbers b';
my $rows = 3000 * 3000;

sub long_state
{
	my ($session) = @_;
	return $gate->state($session) =~ /^(?:long|paused)$/;
}

sub ok_becomes_long
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($gate->await_true(sub { long_state($session) }, 'a long statement'), $what);
}

sub endless
{
	my (%param) = @_;
	my $session = $gate->session(%param);
	$session->start($endless);
	return $session;
}

# Ends it by a cancel request.
sub ok_cancels
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->cancel;
	is($session->sqlstate, '57014', $what);
	$session->quit;
	return;
}

# Short statements that always want a CPU, and more of them than there are.  They do not
# read rows, so they are never long.
sub short_ones
{
	return map { $gate->worker(@_) } 1 .. 4;
}

sub stop
{
	$gate->stop_worker($_) foreach @_;
	$_->quit foreach @_;
	return;
}

# ----------------------------------------------------------------
# The slot
# ----------------------------------------------------------------

{
	my @sessions = map { endless() } 1 .. 2;
	ok_becomes_long($_, 'a statement that reads for long is long') foreach @sessions;
	is($gate->counter('running'), '0', 'it has no slot any more');
	is($gate->counter('demotions'), '2', 'which is counted');
	is($gate->counter('long + paused'), '2', 'the statements are shown');

	my $short = $gate->session;
	$short->start('SELECT 1');
	$gate->ok_passes($short, 'a short statement finds a slot');
	is( $gate->value(
			"SELECT count(*) FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity a USING (pid)
			WHERE gate_state IN ('long', 'paused') AND query LIKE '%numbers%'"),
		'2',
		'the views tell which queries are long');
	$short->quit;
	ok_cancels($_, 'it can be cancelled') foreach @sessions;
	$gate->ok_quiet('after long statements');
	$gate->ok_adds_up('after long statements');
}

{
	# These nodes yield rows without asking another node for any.
	$gate->value('CREATE TABLE many AS SELECT i FROM generate_series(1, 200000) i');
	$gate->value('CREATE INDEX ON many (i)');
	$gate->value('ANALYZE many');
	# The planner takes it for so many that it hashes the other table.
	$gate->value(
		'CREATE FUNCTION one_row() RETURNS SETOF int ROWS 100000 LANGUAGE plpgsql AS $$ BEGIN RETURN NEXT 0; END $$');
	my $off = 'jit enable_seqscan enable_indexscan enable_indexonlyscan enable_sort enable_nestloop enable_mergejoin';
	my %settings = map { $_ => 'off' } split / /, $off;
	my $slow = sub { "length(repeat(md5(($_[0])::text), $_[1])) > 0" };
	my %plans = (
		'Bitmap Heap Scan' => 'SELECT count(*) FROM many WHERE i > 0 AND ' . $slow->('i', 1000),
		'HashAggregate' => 'SELECT count(*) FROM (SELECT i + 0 FROM numbers GROUP BY i + 0 HAVING '
		  . $slow->('max(i)', 30_000) . ') g',
		'Hash Join' => 'SELECT count(*) FROM one_row() s JOIN numbers n ON s = n.i / 4000 WHERE '
		  . $slow->('s + n.i', 30_000),
		'ProjectSet' => 'SELECT count('
		  . ($slow->('i', 1000) =~ s/ > 0//r)
		  . ') FROM (SELECT generate_series(1, 100000000) i) g');

	for my $plan (sort keys %plans)
	{
		my $session = $gate->session(session => \%settings);
		like($session->query("EXPLAIN $plans{$plan}"), qr/$plan/, "a plan with $plan");
		$session->start($plans{$plan});
		ok_becomes_long($session, 'is long when it takes long');
		ok_cancels($session, 'and can be cancelled');
	}
	$gate->ok_quiet('after these nodes');

	# Statements inside of a function are none of their own.
	$gate->value(
		'CREATE FUNCTION one() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM sale WHERE id = 1); END $$'
	);
	my $calls = $gate->session;
	$calls->start("SELECT sum(one()) FROM numbers a, numbers b");
	ok_becomes_long($calls, 'a statement that calls functions is long');
	my $demotions = $gate->counter('demotions');
	my $until = $gate->value(q{SELECT clock_timestamp() + interval '300 ms'});
	$gate->await("SELECT clock_timestamp() > '$until'");
	is($gate->counter('demotions'), $demotions, 'and stays so, whatever they do');
	ok_cancels($calls, 'it can be cancelled');

	# However many there are, short ones find the slots.
	my @sessions = map { endless() } 1 .. 5;
	ok($gate->await_true(sub { $gate->counter('long + paused = 5 AND running = 0 AND waiting = 0') eq 't' }, 'all'),
		'more statements than slots can be long');
	my $short = $gate->session;
	$short->start('SELECT 1');
	$gate->ok_passes($short, 'short ones find the slots');
	$short->quit;
	$_->cancel foreach @sessions;
	$_->result foreach @sessions;
	$_->quit foreach @sessions;
	$gate->ok_quiet('after more than the limit');

	# One that begins to write counts again.
	my $writer = $gate->session;
	$writer->start("DO 'BEGIN PERFORM ($long); UPDATE sale SET sold = 2 WHERE id = 1; PERFORM ($endless); END'");
	ok_becomes_long($writer, 'a statement that reads for long first is long');
	ok($gate->await_true(sub { $gate->state($writer) eq 'running' }, 'a slot'),
		'when it has begun to write, it has a slot');
	ok_cancels($writer, 'it can be cancelled');
	$gate->ok_quiet('after one that writes');

	my $session = $gate->session;
	is($session->query($long), $rows, 'a long statement ends');
	$session->quit;
	$gate->ok_quiet('after one that ended');

	my $block = $gate->holder;
	is($block->query($long), $rows, 'a long statement in a transaction ends');
	is($gate->state($block), 'lent', 'it is not long any more, and its slot is free for others');
	is($block->query('SELECT 1'), '1', 'the transaction goes on');
	is($gate->state($block), 'running', 'with a slot');
	is($gate->counter('running'), '1', 'that counts');
	$block->query('COMMIT');
	$block->quit;
	$gate->ok_quiet('after the transaction');

	# The leader of a parallel query may only wait for its workers.
	my $leader = $gate->holder;
	$leader->query("SET LOCAL $_")
	  foreach (
		'max_parallel_workers_per_gather = 2',
		'parallel_setup_cost = 0',
		'min_parallel_table_scan_size = 0',
		'parallel_leader_participation = off');
	$demotions = $gate->counter('demotions');
	is($leader->query($long), $rows, 'a parallel query ends');
	is($gate->counter('demotions'), $demotions + 1, 'which its workers have made long');
	is($gate->state($leader), 'lent', 'and it is not long any more');
	$leader->query('COMMIT');
	$leader->quit;

  SKIP:
	{
		skip 'no /proc', 2 unless -e '/proc/self/stat';
		# What counts is the CPU time of all its processes: none of four has used it alone.
		$gate->value('CREATE TABLE for_all (i int) WITH (parallel_workers = 4)');
		$gate->value('INSERT INTO for_all SELECT i FROM numbers');
		$gate->value('ANALYZE for_all');
		$gate->set(long_after => 2000);
		my %in_parallel = (
			max_parallel_workers_per_gather => 4,
			parallel_setup_cost => 0,
			min_parallel_table_scan_size => 0,
			parallel_leader_participation => 'off');
		my $parallel = $gate->session(session => \%in_parallel);
		$parallel->start('SELECT count(*) FROM for_all, numbers b, numbers c');
		ok_becomes_long($parallel, 'a parallel query is long');
		my $pid = $parallel->pid;
		# In hundredths of a second, as everywhere on Linux
		my @used = map { (split ' ', slurp_file("/proc/$_/stat") =~ s/.*\) //sr)[11] / 100 }
		  split /\n/, $gate->value("SELECT pid FROM pg_stat_activity WHERE leader_pid = $pid");
		is(scalar(grep { $_ < 1.5 } @used), 4, 'by what its processes have used together') or diag "@used";
		ok_cancels($parallel, 'it can be cancelled');

		# What workers use where their statement cannot be long does not count for the next one.
		$gate->set(long_after => 1000);
		$demotions = $gate->counter('demotions');
		my $writer = $gate->session(session => \%in_parallel);
		$writer->query($_)
		  foreach (
			'BEGIN',
			'UPDATE sale SET sold = 0 WHERE id = 1',
			('SELECT count(*) FROM for_all, numbers b') x 4, 'COMMIT');
		$writer->query('SELECT count(*) FROM numbers a, numbers b WHERE a.i <= 300');
		is($gate->counter('demotions'), $demotions, 'a short statement after a parallel one is not long');
		$writer->quit;
		$gate->set(long_after => 50);
	}

	# An error that a function of it has caught does not end it.
	$gate->value(
		'CREATE FUNCTION catches(i int) RETURNS int LANGUAGE plpgsql AS $$
		BEGIN RETURN i / 0; EXCEPTION WHEN division_by_zero THEN RETURN 0; END $$');
	$demotions = $gate->counter('demotions');
	my $catching = $gate->session;
	is($catching->query('SELECT sum(catches(a.i)) FROM numbers a, numbers b WHERE b.i < 20'),
		'0', 'a statement that catches errors ends');
	is($gate->counter('demotions'), $demotions + 1, 'and was made long once');
	$catching->quit;

	# What is fetched piece by piece is one query.
	$demotions = $gate->counter('demotions');
	my $cursor = $gate->holder;
	$cursor->query("DECLARE c CURSOR FOR SELECT a.i FROM numbers a, numbers b WHERE a.i + b.i > 0");
	ok( $gate->await_true(
			sub { $cursor->query('MOVE 5000 FROM c'); $gate->counter('demotions') > $demotions },
			'a demotion'),
		'a cursor is long by all that was fetched');
	$cursor->query('COMMIT');
	$demotions = $gate->counter('demotions');
	$cursor->query('BEGIN');
	$cursor->query('SELECT count(*) FROM numbers WHERE i < 1000') foreach 1 .. 1000;
	is($gate->counter('demotions'), $demotions, 'many short queries are not');
	$cursor->query('COMMIT');
	$cursor->quit;
	$gate->ok_quiet('after a cursor');

	# What will write is never long.
	$gate->value('CREATE TABLE copy (n bigint)');
	foreach my $write (
		"INSERT INTO copy $long",
		"SELECT pg_current_xact_id(), ($long)",
		"WITH w AS (INSERT INTO copy VALUES (1) RETURNING n) $long",
		"SELECT * FROM sale WHERE ($long) > 0 AND id = 1 FOR UPDATE")
	{
		my $writer = $gate->session;
		$writer->query($write);
		is($gate->counter('demotions'), $demotions, 'is not long: ' . substr($write, 0, 20));
		$writer->quit;
	}
}

# ----------------------------------------------------------------
# The pause
# ----------------------------------------------------------------

# Until no more than the share of one CPU goes on
sub ok_pauses
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($gate->await_true(sub { $gate->counter('long <= 1 AND paused >= 2') eq 't' }, 'pauses'), $what);
}

# Without a limit there is nothing to give up.
{
	$gate->set(max_active_backends => -1);
	my $demotions = $gate->counter('demotions');
	$gate->session->query("SELECT count(*) FROM generate_series(1, 3000000)");
	is($gate->counter('demotions'), $demotions, 'with -1 no statement is long');
	$gate->set(max_active_backends => 50);
	my @sessions = map { endless() } 1 .. 4;
	ok_becomes_long($_, 'a long statement below the limit') foreach @sessions;
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'none to pause'),
		'long statements do not pause for each other');

	# What was a short statement at work for seconds is one no more.
	$gate->set(long_after => 2000);
	my $last = endless();
	my %seen = (long => 0, paused => 0);
	$gate->await_true(sub { $seen{ $gate->state($last) }++; $seen{long} + $seen{paused} >= 100 }, 'some time');
	is($seen{paused}, 0, 'nor does one that becomes long beside them');
	ok_cancels($last, 'it is there');
	$gate->set(long_after => 50);

	my @short = short_ones();
	ok_pauses('they pause for short ones, but for one');
	is( $gate->value(
			"SELECT count(*) > 0 FROM pg_stat_activity
			WHERE wait_event_type = 'Extension' AND query LIKE '%numbers%'"),
		't',
		'pg_stat_activity shows the pause');

	my %has_gone_on;
	ok( $gate->await_true(
			sub {
				my ($pid) =
				  $gate->value("SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state = 'long' LIMIT 1");
				$has_gone_on{$pid} = 1 if $pid;
				return keys %has_gone_on == 4;
			},
			'turns'),
		'each goes on in its turn');
	stop(@short);
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'when the short ones are gone, all go on');

	@short = short_ones();
	ok_pauses('they pause again');
	my ($paused) = grep { $gate->state($_) eq 'paused' } @sessions;
	$paused //= $sessions[0];
	ok_cancels($paused, 'one that pauses can be cancelled');
	@sessions = grep { $_ != $paused } @sessions;
	$gate->await_true(sub { $gate->counter('paused') > 0 }, 'one that pauses');
	($paused) = grep { $gate->state($_) eq 'paused' } @sessions;
	$paused //= $sessions[0];
	$gate->value('SELECT pg_terminate_backend(' . $paused->pid . ')');
	ok($gate->await_true(sub { $gate->counter('long + paused') == 2 }, 'its end'), 'or terminated');
	@sessions = grep { $_ != $paused } @sessions;
	$gate->await_true(
		sub {
			($paused) = grep { $gate->state($_) eq 'paused' } @sessions;
		},
		'one of the last two to pause');
	$paused->hang_up;
	ok($gate->await_true(sub { $gate->counter('long + paused') == 1 }, 'its end'),
		'one that pauses ends when its client has hung up');
	$_->cancel foreach grep { $_ != $paused } @sessions;
	stop(@short);
	$gate->ok_quiet('after pauses');
	$gate->ok_adds_up('after pauses');
}

{
	# The first that pauses, which is to let the others go on, catches an error and does
	# something else.
	my $catches = $gate->session;
	$catches->start(
		"DO \$\$ BEGIN PERFORM count(*) FROM numbers a, numbers b, numbers c;
		EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(600); END \$\$");
	my @sessions = map { endless() } 1 .. 2;
	ok_becomes_long($_, 'a long statement') foreach ($catches, @sessions);
	my @short = short_ones();
	$gate->await(
		'SELECT (SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state = \'paused\'
		ORDER BY state_change LIMIT 1) = ' . $catches->pid . ' AND long = 1 AND paused = 2 FROM pg_stat_admission_gate');
	# A cancel request may signal twice, and so cancel the sleep as well.
	$gate->value('SELECT pg_cancel_backend(' . $catches->pid . ')');
	$gate->await("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = " . $catches->pid);
	my $goes_on;
	$gate->await_true(
		sub {
			($goes_on) = grep { $gate->state($_) eq 'long' } @sessions;
			return defined $goes_on;
		},
		'one that goes on');
	my ($paused) = grep { $_ != $goes_on } @sessions;
	ok_cancels($goes_on, 'the one that goes on ends');
	ok( $gate->await_true(sub { $gate->state($paused) eq 'long' }, 'its turn'),
		'one that pauses goes on though the first of them does something else');
	ok_cancels($_, 'it can be cancelled') foreach ($paused, $catches);
	stop(@short);
	$gate->ok_quiet('after a caught error');
}

# ----------------------------------------------------------------
# What does not pause
# ----------------------------------------------------------------

# Those sessions do not pause while others do: they are not seen to in the time in which
# each of the others goes on and pauses again.
sub ok_never_pauses
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my %seen;
	my $before = $gate->value('SELECT clock_timestamp()');
	$gate->await_true(
		sub {
			$seen{ $gate->state($session) } = 1;
			$gate->value("SELECT clock_timestamp() > '$before'::timestamptz + interval '2 s'") eq 't';
		},
		'two seconds');
	return ok(!$seen{paused}, $what) || diag join ' ', keys %seen;
}

{
	my @others = map { endless() } 1 .. 3;
	my @short = short_ones();
	ok_pauses('some pause');

	my $writer = $gate->holder;
	$writer->query('UPDATE sale SET sold = 1 WHERE id = 1');
	$writer->start($endless);
	ok_never_pauses($writer, 'a transaction that has written does not');
	is($gate->state($writer), 'running', 'nor does it give its slot up');
	ok_cancels($writer, 'it is there');

	# It may have locked rows of another server.
	$gate->value('CREATE EXTENSION postgres_fdw');
	$gate->value(
		sprintf "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%s', dbname 'postgres',
		options '-c admission_gate.bypass=on')",
		$gate->node->host, $gate->node->port);
	$gate->value('CREATE USER MAPPING FOR PUBLIC SERVER far');
	$gate->value("CREATE FOREIGN TABLE far_sale (id int, sold int) SERVER far OPTIONS (table_name 'sale')");
	my $far = $gate->holder;
	$far->query('UPDATE far_sale SET sold = 1 WHERE id = 2');
	$far->start($endless);
	ok_never_pauses($far, 'nor one that has written on another server');
	is($gate->state($far), 'running', 'which keeps its slot as well');
	ok_cancels($far, 'it is there');

	my $off = $gate->session(session => { 'admission_gate.pool' => 'apart' });
	$gate->set(pools => 'apart:');
	$off->start($endless);
	ok_never_pauses($off, 'nor does one of another pool');
	ok_cancels($off, 'it is there');

	# DDL that waits for a statement that pauses does not wait for long.
	my $alter = $gate->session;
	$alter->start('ALTER TABLE numbers ADD COLUMN j int');
	$gate->await_wait_event_type($alter, 'Lock');
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'one whose lock another backend waits for goes on');
	$alter->cancel;
	is($alter->sqlstate, '57014', 'that one waits as without the gate');
	$alter->quit;

	ok_pauses('then they pause again');
	my $vacuum = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	$vacuum->start('VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) numbers');
	$gate->await_wait_event_type($vacuum, 'Buffer%');    # BufferPin, from 19 on Buffer
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'while VACUUM waits for a pin, none pauses');
	ok_cancels($vacuum, 'it waits as without the gate');

	ok_pauses('then they pause again');
	$gate->set(long_after => -1);
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'with long_after = -1 none pauses');
	ok_cancels($_, 'each is still there') foreach @others;
	stop(@short);
	$gate->ok_quiet('after those that do not pause');
}

# ----------------------------------------------------------------
# Ways to run a statement
# ----------------------------------------------------------------

$gate->set(long_after => 50);

for my $way (
	[ 'extended protocol', sub { $_[0]->start_extended($endless) } ],
	[ 'prepared statement', sub { $_[0]->prepare('p', $endless); $_[0]->start_prepared('p') } ],
	[ 'cursor', sub { $_[0]->query('BEGIN'); $_[0]->query("DECLARE c CURSOR FOR $endless"); $_[0]->start('FETCH c') } ],
	[
		'procedure',
		sub {
			$_[0]->query("CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN PERFORM * FROM ($endless) e; END'");
			$_[0]->start('CALL p()');
		}
	],
	[ 'COPY', sub { $_[0]->start("COPY ($endless) TO STDOUT") } ],
	[
		'parallel query',
		sub {
			$_[0]->query('SET max_parallel_workers_per_gather = 2');
			$_[0]->query('SET parallel_setup_cost = 0');
			$_[0]->query('SET min_parallel_table_scan_size = 0');
			$_[0]->query('SET parallel_leader_participation = off');
			$_[0]->start($endless);
		}
	])
{
	my ($name, $start) = @$way;
	my $session = $gate->session(user => $gate->node->safe_psql('postgres', 'SELECT current_user'));
	my @short = short_ones();
	my @others = map { endless() } 1 .. 2;
	$start->($session);
	ok_becomes_long($session, "$name: is long");
	# Of a parallel query, each worker does so by itself.
	my $any = sub {
		my ($condition) = @_;
		my $pid = $session->pid;
		return $gate->value(
			"SELECT count(*) FROM pg_stat_activity WHERE $pid IN (pid, leader_pid) AND wait_event $condition") > 0;
	};
	ok($gate->await_true(sub { $any->("IN ('AdmissionGatePause', 'Extension')") }, 'a pause'), "$name: pauses");
	ok($gate->await_true(sub { $any->('IS NULL') }, 'its turn'), "$name: goes on");
	stop(@short);
	$session->cancel;
	is($session->sqlstate, '57014', "$name: can be cancelled");
	$session->quit;
	ok_cancels($_, "$name: others are there") foreach @others;
	$gate->ok_quiet("after $name");
}

# ----------------------------------------------------------------
# Those that wait, and the timer
# ----------------------------------------------------------------

{
	# One that waits takes no turn from one that works.
	$gate->value(
		'CREATE FUNCTION burns_and_sleeps(int) RETURNS bigint LANGUAGE plpgsql AS $$
		DECLARE n bigint;
		BEGIN
			SELECT count(*) INTO n FROM generate_series(1, 300000);
			PERFORM pg_sleep(2.8);
			RETURN n;
		END $$');
	my @sleepers = map { $gate->session } 1 .. 4;
	$_->start('SELECT sum(burns_and_sleeps(i)) FROM numbers') foreach @sleepers;
	ok_becomes_long($_, 'one that works and sleeps by turns is long') foreach @sleepers;
	my $report = endless();
	my @short = short_ones();
	ok_becomes_long($report, 'so is one that works');
	my %seen = (long => 0, paused => 0);
	my $before = $gate->value('SELECT clock_timestamp()');
	$gate->await_true(
		sub {
			$seen{ $gate->state($report) }++;
			$gate->value("SELECT clock_timestamp() > '$before'::timestamptz + interval '6 s'") eq 't';
		},
		'six seconds');
	cmp_ok($seen{long}, '>', $seen{paused} / 6, 'it is at work for a good part of the time') || diag explain \%seen;
	note "long $seen{long}, paused $seen{paused}";
	stop(@short);
	ok_cancels($_, 'it is there') foreach (@sleepers, $report);
	$gate->ok_quiet('after those that sleep');
}

SKIP:
{
	# SIGPROF is signal 27.
	my $catches = sub {
		my ($session) = @_;
		my ($caught) = slurp_file('/proc/' . $session->pid . '/status') =~ /^SigCgt:\s*(\w+)/m;
		return hex(substr $caught, -8) & 1 << 26;
	};
	skip 'no /proc', 4 unless -e '/proc/self/status' && `uname -sm` =~ /^Linux (?:x86_64|aarch64)/;
	my $session = $gate->session;
	$session->query('SELECT count(*) FROM numbers');
	ok($catches->($session), 'a session whose statements can be long has a timer');
	$session->quit;
	foreach my $case (
		[ 'that bypasses' => {}, { 'admission_gate.bypass' => 'on' } ],
		[ 'of a pool with a limit' => { pools => 'apart: max_active=3' }, { 'admission_gate.pool' => 'apart' } ],
		[ 'with long_after = -1' => { long_after => -1 }, {} ])
	{
		my ($what, $settings, $own) = @$case;
		$gate->set(%$settings);
		$session = $gate->session(session => $own);
		$session->query('SELECT count(*) FROM numbers');
		ok(!$catches->($session), "a session $what has none");
		$session->quit;
	}
}

# ----------------------------------------------------------------
# Another module that counts the calls of a node
# ----------------------------------------------------------------

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
	like($err, qr/INFO:  3001 calls/, 'the function that another module has put into a node is called');
}

$gate->node->stop;

done_testing();
