# Proves that nobody gets past a full gate: no command runs a user's code or takes a
# transaction id without a slot so that its transaction need not wait any more; what
# a session may not do any more when its wait ends, it does not do; and streams from
# and to clients are work.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $gate = GateTest->new('no_way_past', max_active_backends => 1, max_connections => 60);

$gate->value($_)
  foreach (
	'CREATE ROLE plain LOGIN',
	'GRANT CREATE ON SCHEMA public TO plain',
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i',
	'GRANT ALL ON t TO plain',
	'CREATE PROCEDURE nothing(x bigint) LANGUAGE plpgsql AS $$ BEGIN END $$',
	# A check that catches errors, and so works in a subtransaction
	'CREATE FUNCTION checks(int) RETURNS bool LANGUAGE plpgsql AS
		$$ BEGIN PERFORM txid_current() FROM t; RETURN true; EXCEPTION WHEN division_by_zero THEN RETURN false; END $$',
	'CREATE DOMAIN checked AS int CHECK (checks(value))');

# ----------------------------------------------------------------
# Commands, and what they evaluate before their statement is admitted
# ----------------------------------------------------------------

# The session waits in the queue, has no transaction id there, and was not forced in.
# Then it is told to stop.
sub ok_waits_without_xid
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$gate->ok_waits($session, "$what: waits");
	is($gate->value("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = " . $session->pid),
		'0', "$what: has no transaction id");
	is($gate->counter('forced'), '0', "$what: nobody was forced in");
	$session->cancel;
	$session->result;
	$session->query('ROLLBACK');
	return;
}

my @setup = ('PREPARE p(bigint) AS SELECT $1', 'SET default_transaction_isolation = "read committed"');

# With a statement after it, in one message
my @commands = (
	'EXPLAIN SELECT 1 FROM pg_class WHERE relpages < txid_current()',
	'EXPLAIN EXECUTE p(txid_current())',
	'PREPARE q AS SELECT txid_current()',
	'EXECUTE p(txid_current())',
	'CALL nothing(txid_current())',
	'DECLARE c CURSOR FOR SELECT txid_current()',
	'COPY (SELECT txid_current()) TO STDOUT',
	'CREATE TABLE made AS SELECT txid_current()',
	'DO $$ BEGIN PERFORM txid_current(); END $$',
	'SET application_name = x',
	'SET LOCAL work_mem = 1000',
	'SET CONSTRAINTS ALL IMMEDIATE',
	'SHOW work_mem',
	'LISTEN x',
	'NOTIFY x',
	'UNLISTEN x',
	'DEALLOCATE ALL',
	'DISCARD PLANS',
	'DISCARD TEMP',
	'CREATE TABLE made (a int)',
	'LOCK t');

for my $scope ('transaction', 'statement')
{
	for my $utility ('on', 'off')
	{
		my $worker = $gate->worker;
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		$gate->value("ALTER ROLE plain SET admission_gate.$_->[0] = '$_->[1]'")
		  foreach ([ scope => $scope ], [ gate_utility => $utility ]);
		for my $command (@commands)
		{
			my $session = $gate->session(user => 'plain');
			$session->query($_) foreach @setup;
			my $begin = $scope eq 'statement' ? 'BEGIN; ' : '';
			$session->start("$begin$command; SELECT count(*) FROM t");
			ok_waits_without_xid($session, "$command, scope $scope, gate_utility $utility");
			$session->quit;
		}
		$gate->stop_worker($worker);
	}
}
$gate->value('ALTER ROLE plain RESET ALL');

# DDL that needs no slot passes alone, but not in a transaction.
{
	my $worker = $gate->worker;
	$gate->value("ALTER ROLE plain SET admission_gate.gate_utility = off");
	my $session = $gate->session(user => 'plain');
	$session->start('CREATE TABLE alone (a int)');
	$gate->ok_passes($session, 'with gate_utility = off, CREATE TABLE passes');
	$gate->value('ALTER ROLE plain RESET ALL');
	$gate->stop_worker($worker);
}

# The conversion of a parameter, which comes before everything that a hook sees
{
	my $worker = $gate->worker;
	my $session = $gate->session(user => 'plain');
	$session->parse('', 'SELECT $1::checked')->bind('', '', '1')->execute('')->sync;
	ok_waits_without_xid($session, 'a domain whose check runs a query');
	$gate->stop_worker($worker);
}
$gate->ok_quiet('after the commands');

# Whose session passes by right may hold locks when that ends.
{
	my $worker = $gate->worker;
	my $session = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	$session->query('BEGIN; LOCK t');
	$session->query('SET admission_gate.bypass = off');
	$session->start('SELECT 1');
	$gate->ok_passes($session, 'a transaction that began with bypass goes on without it');
	is($gate->counter('forced'), '1', 'above the limit');
	$session->query('COMMIT');
	$session->start('SELECT 1');
	$gate->ok_waits($session, 'and the next one waits');
	$gate->stop_worker($worker);
	$session->result;
}
$gate->ok_quiet('after the bypass');

# ----------------------------------------------------------------
# Rights that end during the wait
# ----------------------------------------------------------------

$gate->value($_)
  foreach (
	'CREATE ROLE reader LOGIN',
	'CREATE ROLE readers',
	'CREATE TABLE secret (a int, b int)',
	'INSERT INTO secret VALUES (1, 2)',
	'CREATE FUNCTION answer() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$');

# What is granted, the statement, what happens during its wait, what comes of it:
# a result or a SQLSTATE
my @cases = (
	[ 'GRANT SELECT ON secret TO reader', 'SELECT a FROM secret', 'REVOKE SELECT ON secret FROM reader', '42501' ],
	[
		'GRANT SELECT (a) ON secret TO reader',
		'SELECT a FROM secret',
		'REVOKE SELECT (a) ON secret FROM reader',
		'42501'
	],
	[
		'GRANT SELECT ON secret TO readers; GRANT readers TO reader',
		'SELECT a FROM secret',
		'REVOKE readers FROM reader', '42501'
	],
	[ 'ALTER ROLE reader SUPERUSER', 'SELECT a FROM secret', 'ALTER ROLE reader NOSUPERUSER', '42501' ],
	[
		'GRANT EXECUTE ON FUNCTION answer TO reader; REVOKE EXECUTE ON FUNCTION answer FROM public',
		'SELECT answer()',
		'REVOKE EXECUTE ON FUNCTION answer FROM reader', '42501'
	],
	[
		'GRANT EXECUTE ON FUNCTION answer TO reader',
		'SELECT answer()',
		'CREATE OR REPLACE FUNCTION answer() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 2; END $$', '2'
	],
	[
		'REVOKE readers FROM reader; GRANT UPDATE, SELECT ON secret TO reader',
		'UPDATE secret SET b = 3 RETURNING b',
		'REVOKE UPDATE ON secret FROM reader', '42501'
	]);

for my $case (@cases)
{
	my ($grant, $sql, $change, $expected) = @$case;

	for my $way ('simple', 'cached')
	{
		$gate->value(
			'REVOKE ALL ON secret FROM reader, readers; REVOKE readers FROM reader; ALTER ROLE reader NOSUPERUSER');
		$gate->value('CREATE OR REPLACE FUNCTION answer() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$');
		$gate->value($_) foreach split /; /, $grant;
		my $session = $gate->session(user => 'reader');
		$session->query('SET plan_cache_mode = force_generic_plan');
		$session->prepare('s', $sql);
		my $start = sub { $way eq 'simple' ? $session->start($sql) : $session->start_prepared('s') };
		$start->();
		is($session->sqlstate, '00000', "$sql, $way, after $grant");

		my $worker = $gate->worker;
		$start->();
		$gate->await_queued($session);
		$gate->value($change);
		$gate->stop_worker($worker);
		my $result = $session->result;
		is($result->{error} ? $result->{error}{C} : $result->{rows}[0][0], $expected, "then $change while it waits");
		$session->quit;
	}
}
$gate->ok_quiet('after the changes of rights');

# ----------------------------------------------------------------
# Streams
# ----------------------------------------------------------------

$gate->set(max_active_backends => 2);

# Two streams are all that run beside two others that wait, and keep their slots, while
# the function keeps them busy.
sub ok_keep_slots
{
	my ($what, $sql, $keep_busy) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my @streams = map { $gate->session } 1 .. 4;
	my $await = sub {
		my ($gauges) = @_;
		$gate->await_true(sub { $keep_busy->(@streams[ 0, 1 ]); $gate->gauges eq $gauges }, $gauges);
	};
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$_->start($sql) foreach @streams[ 0, 1 ];
	$await->('2|0|0');
	$_->start($sql) foreach @streams[ 2, 3 ];
	$await->('2|0|2');
	my $end = time + 1;
	$keep_busy->(@streams[ 0, 1 ]) while time < $end;
	is($gate->gauges, '2|0|2', "$what: two are at work, the others wait");
	is($gate->counter('ARRAY[lends, stalls]'), '{0,0}', "$what: no slot was lent, nor made up for");
	$_->hang_up foreach @streams;
	$gate->ok_quiet("after $what");
	return;
}

$gate->value('CREATE TABLE loaded (a text)');
my $chunk = ('some words to read' x 4 . "\n") x 3000;
ok_keep_slots(
	'COPY FROM with pauses of the client',
	'COPY loaded FROM STDIN',
	sub {
		$_->copy_data($chunk) foreach @_;
		usleep(20_000);
	});

ok_keep_slots(
	'COPY TO',
	'COPY (SELECT id, v FROM t, generate_series(1, 1000000)) TO STDOUT',
	sub {
		for (@_)
		{
			$_->sip(1_000_000);
			$_->{in} = '';
		}
	});

# The leader does nothing, its workers do.
{
	my $parallel = join '; ',
	  map { "SET $_" } (
		'parallel_setup_cost = 0',
		'parallel_tuple_cost = 0',
		'min_parallel_table_scan_size = 0',
		'max_parallel_workers_per_gather = 2',
		'parallel_leader_participation = off');
	$gate->set(max_active_backends => 1);
	my ($query, $other) = map { $gate->session } 1 .. 2;
	$query->query($parallel);
	$query->start('SELECT count(*) FROM t a, t b, t c WHERE a.v + b.v + c.v = 0');
	$gate->await("SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'parallel worker'", 'two workers');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$other->start('SELECT 1');
	$gate->await_queued($other);
	usleep(700_000);
	is($gate->counter('ARRAY[waiting, lends, stalls]'),
		'{1,0,0}', 'a parallel query keeps its slot while its workers work');
	$query->cancel;
	$query->result;
	is($other->finish, '1', 'and the next has it after it');
}
# A holder that gets no CPU, as others than the server want it, is at work.
{
	$gate->set(max_active_backends => 1, lend_after => 10);
	my $worker = $gate->worker;
	my $other = $gate->session;
	my ($cores) = `nproc` =~ /(\d+)/;
	my @hogs;
	for (1 .. 10 * ($cores // 4))
	{
		my $pid = fork // die "could not fork: $!";
		if (!$pid)
		{
			alarm 20;
			1 while 1;
		}
		push @hogs, $pid;
	}
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$other->start('SELECT 1');
	$gate->await_queued($other);
	usleep(500_000);
	my $counts = $gate->counter('ARRAY[waiting, lends, stalls]');
	kill KILL => @hogs;
	waitpid $_, 0 foreach @hogs;
	is($counts, '{1,0,0}', 'a holder that waits for a CPU keeps its slot');
	$gate->stop_worker($worker);
	is($other->finish, '1', 'and the next has it after it');
	$gate->set(lend_after => 100);
}
$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');

$gate->node->stop;

done_testing();
