# Proves that the limit caps the backends at work: whatever the command and the
# protocol, with one slot taken the next session sleeps until it is given back;
# what does not need a slot passes; the limit follows a reload; and superusers are
# no exception.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'limit',
	max_active_backends => 1,
	lend_after => 60_000,
	wal_level => 'logical',
	max_prepared_transactions => 5,
	init => { allows_streaming => 'logical' });
my $node = $gate->node;

$gate->value($_)
  foreach (
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i',
	'CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t',
	'CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN UPDATE t SET v = v WHERE id = 1; END $$');

# With a holder in the only slot, the session starts something, waits, and does
# well once the holder has committed.
sub waits_for_its_turn
{
	my ($what, $session, $start) = @_;

	my $holder = $gate->holder;
	$start->();
	$gate->ok_waits($session, "$what waits for a slot");
	$holder->query('COMMIT');
	is($session->sqlstate, '00000', "$what runs when it has one");
	$holder->quit;
	return;
}

# The same for a statement in the simple protocol.
sub statement_waits
{
	my ($what, $sql) = @_;

	my $session = $gate->session;
	waits_for_its_turn($what, $session, sub { $session->start($sql) });
	$session->quit;
	return;
}

# With a holder in the only slot, the statement does not queue.
sub statement_passes
{
	my ($what, $sql, @session) = @_;

	my $holder = $gate->holder;
	my $session = $gate->session(@session);
	$session->start($sql);
	$gate->ok_passes($session, "$what passes a full gate");
	$session->quit;
	$holder->quit;
	return;
}

# ----------------------------------------------------------------
# Commands
# ----------------------------------------------------------------

statement_waits(@$_)
  foreach (
	[ 'SELECT', 'SELECT count(*) FROM t' ],
	[ 'SELECT without a table', 'SELECT 1' ],
	[ 'VALUES', 'VALUES (1)' ],
	[ 'INSERT', 'INSERT INTO t VALUES (2001, 0)' ],
	[ 'UPDATE', 'UPDATE t SET v = 1 WHERE id = 1' ],
	[ 'UPDATE ... RETURNING', 'UPDATE t SET v = 1 WHERE id = 1 RETURNING v' ],
	[ 'DELETE', 'DELETE FROM t WHERE id = 2001' ],
	[ 'MERGE', 'MERGE INTO t USING (VALUES (1)) s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 2' ],
	[ 'COPY TO', 'COPY t TO STDOUT' ],
	[ 'COPY TO of a query', 'COPY (SELECT 1) TO STDOUT' ],
	[ 'CREATE INDEX', 'CREATE INDEX t_v ON t (v)' ],
	[ 'CREATE INDEX CONCURRENTLY', 'CREATE INDEX CONCURRENTLY t_v2 ON t (v)' ],
	[ 'CREATE TABLE AS', 'CREATE TABLE ctas AS SELECT * FROM t' ],
	[ 'SELECT INTO', 'SELECT * INTO selectinto FROM t' ],
	[ 'CREATE TABLE', 'CREATE TABLE plain (a int)' ],
	[ 'ALTER TABLE', 'ALTER TABLE plain ADD b int' ],
	[ 'TRUNCATE', 'TRUNCATE plain' ],
	[ 'DROP TABLE', 'DROP TABLE plain' ],
	[ 'REFRESH MATERIALIZED VIEW', 'REFRESH MATERIALIZED VIEW m' ],
	[ 'CALL', 'CALL p()' ],
	[ 'DO', 'DO $$ BEGIN PERFORM count(*) FROM t; END $$' ],
	[ 'EXPLAIN ANALYZE', 'EXPLAIN ANALYZE SELECT count(*) FROM t' ],
	[ 'EXPLAIN', 'EXPLAIN SELECT count(*) FROM t' ],
	[ 'VACUUM', 'VACUUM t' ],
	[ 'ANALYZE', 'ANALYZE t' ],
	[ 'REINDEX', 'REINDEX TABLE t' ],
	[ 'CLUSTER', 'CLUSTER t USING t_pkey' ],
	[ 'BEGIN', 'BEGIN' ],
	[ 'START TRANSACTION', 'START TRANSACTION ISOLATION LEVEL SERIALIZABLE' ],
	[ 'a block in one message', "BEGIN; SELECT 1; COMMIT" ],
	[ 'DECLARE and FETCH in a block', "BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 5 FROM c; COMMIT" ],
	[ 'several statements in one message', "SELECT 1; SELECT 2" ],
	[ 'a statement after SET in one message', "SET work_mem = '1MB'; SELECT 1" ]);

# COPY IN asks for its data only when it has a slot.
{
	my $holder = $gate->holder;
	my $session = $gate->session;
	$session->start('COPY t FROM STDIN');
	$gate->ok_waits($session, 'COPY FROM waits for a slot');
	$holder->query('COMMIT');
	is($session->read_until('G')->{stopped}, 'G', 'COPY FROM asks for its data when it has one');
	$session->copy_data("3001\t1\n")->copy_done;
	is($session->sqlstate, '00000', 'COPY FROM stores its data');
	is($gate->value('SELECT v FROM t WHERE id = 3001'), '1', 'the data is there');
	$_->quit foreach ($session, $holder);
}

# A transaction waits once: not for its second statement.
{
	my $holder = $gate->holder;
	my $first = $gate->session;
	$first->start('BEGIN');
	$gate->await_queued($first);
	$holder->query('COMMIT');
	$first->finish;
	$holder->start('SELECT 1');
	$gate->ok_waits($holder, 'a session that has given its slot back waits like any other');
	is($first->query('SELECT 1'), '1', 'a transaction that was admitted runs on');
	$first->query('COMMIT');
	is($holder->finish, '1', 'and its COMMIT lets the next one in');
	$_->quit foreach ($first, $holder);
}

# ----------------------------------------------------------------
# Protocols
# ----------------------------------------------------------------

{
	my $session = $gate->session;

	waits_for_its_turn('an unnamed extended statement',
		$session, sub { $session->start_extended('SELECT count(*) FROM t WHERE id < $1', 10) });

	# The plan is made once and comes from the cache from then on.
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('generic', 'SELECT v FROM t WHERE id = $1');
	$session->prepare('generic_update', 'UPDATE t SET v = v + 1 WHERE id = $1 RETURNING id');
	$session->start_prepared('generic', 1)->finish;
	$session->start_prepared('generic_update', 1)->finish;
	waits_for_its_turn('a prepared SELECT with a cached plan', $session,
		sub { $session->start_prepared('generic', 2) });
	waits_for_its_turn('a prepared UPDATE with a cached plan',
		$session, sub { $session->start_prepared('generic_update', 2) });
	waits_for_its_turn('EXECUTE', $session, sub { $session->start('EXECUTE generic(3)') });
	waits_for_its_turn('EXPLAIN ANALYZE EXECUTE',
		$session, sub { $session->start('EXPLAIN ANALYZE EXECUTE generic(3)') });
	waits_for_its_turn('CREATE TABLE AS EXECUTE',
		$session, sub { $session->start('CREATE TEMP TABLE e AS EXECUTE generic(3)') });

	$session->query('SET plan_cache_mode = force_custom_plan');
	waits_for_its_turn('a prepared SELECT with a plan of its own',
		$session, sub { $session->start_prepared('generic', 2) });
	waits_for_its_turn('a utility command in the extended protocol',
		$session, sub { $session->start_extended('VACUUM t') });
	waits_for_its_turn('BEGIN in the extended protocol', $session, sub { $session->start_extended('BEGIN') });
	$session->query('COMMIT');

	# Several statements before one Sync are one transaction.
	waits_for_its_turn(
		'a pipeline',
		$session,
		sub {
			for my $id (1 .. 3)
			{
				$session->parse('', 'UPDATE t SET v = 7 WHERE id = $1')->bind('', '', $id)->execute('');
			}
			$session->sync;
		});
	is($gate->value('SELECT count(*) FROM t WHERE v = 7'), '3', 'all statements of a pipeline have run');

	# Several Syncs without waiting for the answers.
	my $holder = $gate->holder;
	$session->start_extended('SELECT $1::int', $_) foreach (1 .. 3);
	$gate->ok_waits($session, 'the first transaction of a pipeline waits for a slot');
	$holder->query('COMMIT');
	is(join(',', map { $session->finish } 1 .. 3), '1,2,3', 'all transactions of a pipeline run');
	$_->quit foreach ($session, $holder);
}

# ----------------------------------------------------------------
# What passes
# ----------------------------------------------------------------

statement_passes(@$_)
  foreach (
	[ 'SET', "SET work_mem = '1MB'" ],
	[ 'SHOW', 'SHOW work_mem' ],
	[ 'RESET', 'RESET work_mem' ],
	[ 'PREPARE', 'PREPARE x AS SELECT count(*) FROM t' ],
	[ 'COMMIT outside a block', 'COMMIT' ],
	[ 'ROLLBACK outside a block', 'ROLLBACK' ],
	[ 'LISTEN', 'LISTEN x' ],
	[ 'NOTIFY', 'NOTIFY x' ],
	[ 'DISCARD', 'DISCARD ALL' ],
	[ 'CHECKPOINT', 'CHECKPOINT' ],
	[ 'an empty query', '' ]);

# COMMIT PREPARED ends what others may be waiting for.
{
	my $session = $gate->session;
	$session->query("BEGIN; UPDATE t SET v = 8 WHERE id = 8; PREPARE TRANSACTION 'x'");
	my $holder = $gate->holder;
	$session->start("COMMIT PREPARED 'x'");
	$gate->ok_passes($session, 'COMMIT PREPARED passes a full gate');
	$_->quit foreach ($session, $holder);
}

statement_passes('a session with bypass', 'SELECT count(*) FROM t', session => { 'admission_gate.bypass' => 'on' });

# Walsenders, both kinds.
{
	my $holder = $gate->holder;
	my $sender = $gate->session(replication => 'database');
	$sender->start('SELECT count(*) FROM t');
	$gate->ok_passes($sender, 'SQL in a logical replication connection passes a full gate');
	$sender->start('CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput');
	$gate->ok_passes($sender, 'creating a replication slot passes a full gate');
	$sender->quit;
	$node->backup('through_a_full_gate');
	pass('pg_basebackup passes a full gate');
	$holder->quit;
}

# Autovacuum.
{
	$gate->value('ALTER TABLE t SET (autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0)');
	my $holder = $gate->holder;
	$gate->set(autovacuum => 'on', autovacuum_naptime => 1);
	$gate->value('UPDATE t SET v = 9');
	my $done = $gate->await_true(
		sub {
			$gate->value("SELECT coalesce(max(autovacuum_count), 0) > 0 FROM pg_stat_user_tables WHERE relname = 't'")
			  eq 't';
		},
		'autovacuum');
	ok($done, 'autovacuum passes a full gate');
	$gate->set(autovacuum => 'off');
	$holder->quit;
}

$gate->ok_quiet('after all commands and protocols');
$gate->ok_adds_up('after all commands and protocols');

# ----------------------------------------------------------------
# The limit, and its changes
# ----------------------------------------------------------------

$gate->set(max_active_backends => 3);
{
	my @sessions = map { $gate->session } 1 .. 8;
	$_->start('BEGIN; SELECT 1') foreach @sessions;
	$gate->await_waiting(5);
	is($gate->gauges, '3|0|5', 'as many run as the limit says, and the rest waits');

	$gate->set(max_active_backends => 5);
	$gate->await_waiting(3);
	is($gate->gauges, '5|0|3', 'a higher limit lets waiters in at once');

	$gate->set(max_active_backends => 1);
	is($gate->gauges, '5|0|3', 'a lower limit leaves those running alone');
	my (@running) = grep { $gate->state($_) eq 'running' } @sessions;
	$_->result foreach @running;
	is($running[0]->query('SELECT 2'), '2', 'they finish');
	for my $i (0 .. 3)
	{
		$running[$i]->query('COMMIT');
		is($gate->gauges, (4 - $i) . '|0|3', 'their slots are not given away above the lower limit');
	}
	$running[4]->query('COMMIT');
	$gate->await_waiting(2);
	is($gate->gauges, '1|0|2', 'the last one hands its slot to a waiter');

	$gate->set(max_active_backends => 0);
	$gate->await_waiting(0);
	my @rest = grep {
		my $s = $_;
		!grep { $_ == $s } @running
	} @sessions;
	is(join(',', map { $_->finish } @rest), '1,1,1', 'no limit releases everybody');
	is($rest[0]->query('SELECT 3'), '3', 'and they work on');
	$_->quit foreach @sessions;
	$gate->await("SELECT running = 0 FROM pg_stat_admission_gate");
}

# With no limit, nobody is counted; the limit then holds for sessions that
# began without one.
{
	my $before = $gate->counter('admitted');
	my $old = $gate->holder;
	is($gate->counter('admitted'), $before, 'without a limit, the gate does not see a session');
	$gate->set(max_active_backends => 1);
	my $holder = $gate->holder;
	my $session = $gate->session;
	$session->start('SELECT 1');
	$gate->ok_waits($session, 'a new limit holds at once');
	$_->quit foreach ($holder, $old, $session);
	$gate->ok_quiet('after the limit was set anew');
}

# ----------------------------------------------------------------
# Superusers
# ----------------------------------------------------------------

{
	$gate->value('CREATE ROLE dba LOGIN SUPERUSER');
	my $holder = $gate->holder;
	my $dba = $gate->session(user => 'dba');
	$dba->start('SELECT 1');
	$gate->ok_waits($dba, 'a superuser waits like everyone');
	$holder->query('COMMIT');
	$dba->result;
	$holder->query('BEGIN');
	$dba->query('SET admission_gate.bypass = on');
	$dba->start('SELECT 1');
	$gate->ok_passes($dba, 'a superuser can bypass the gate');
	$dba->query('SET admission_gate.bypass = off');
	$dba->start('SELECT 1');
	$gate->ok_waits($dba, 'until it asks for the gate again');
	$holder->query('COMMIT');
	$dba->result;
	$_->quit foreach ($dba, $holder);
}

# ----------------------------------------------------------------
# gate_utility
# ----------------------------------------------------------------

{
	my @none = (session => { 'admission_gate.gate_utility' => 'off' });
	statement_passes("$_ with gate_utility = off", $_, @none)
	  foreach ('CREATE TABLE u (a int)', 'VACUUM t', 'DROP TABLE u', 'ALTER TABLE t ADD w int');

	my $session = $gate->session(@none);
	$session->query('PREPARE q AS SELECT 1');
	for my $sql ('SELECT 1', 'EXECUTE q', 'CREATE TEMP TABLE u AS SELECT 1', 'EXPLAIN ANALYZE SELECT 1', 'BEGIN')
	{
		waits_for_its_turn("$sql with gate_utility = off", $session, sub { $session->start($sql) });
	}
	$session->quit;
}

# ----------------------------------------------------------------
# scope = statement
# ----------------------------------------------------------------

{
	my $session = $gate->session(session => { 'admission_gate.scope' => 'statement' });
	my $holder = $gate->holder;
	$session->start('BEGIN');
	$gate->ok_passes($session, 'BEGIN passes in statement scope');
	$session->start('SELECT count(*) FROM t WHERE id = 1');
	$gate->ok_waits($session, 'the first statement waits in statement scope');
	$holder->query('COMMIT');
	is($session->finish, '1', 'it runs when it has a slot');
	is($gate->gauges, '0|0|0', 'in statement scope, no slot is held between two statements');

	$holder->query('BEGIN');
	for my $sql (
		'SELECT count(*) FROM t WHERE id = 1',
		'UPDATE t SET v = 1 WHERE id = 1',
		'UPDATE t SET v = 1 WHERE id = 1 RETURNING 1',
		'CREATE TEMP TABLE s AS SELECT 1',
		'DECLARE c CURSOR FOR SELECT * FROM t',
		'FETCH 3 FROM c')
	{
		$session->start($sql);
		$gate->ok_passes($session, "a transaction that was admitted once does not wait again: $sql");
		is($gate->gauges, '1|0|0', 'and gives its slot back after the statement');
	}
	$session->start_extended('SELECT * FROM t WHERE id < $1', 10);
	$gate->ok_passes($session, 'nor does it in the extended protocol');
	is($gate->gauges, '1|0|0', 'where its slot goes back as well');
	$session->query('COMMIT');
	$_->quit foreach ($session, $holder);
}

# A parallel query counts as one.
{
	my $parallel = $gate->session(
		session => {
			min_parallel_table_scan_size => 0,
			parallel_setup_cost => 0,
			parallel_tuple_cost => 0,
			max_parallel_workers_per_gather => 2
		});
	my ($one, $two) = map { $gate->session } 1 .. 2;
	$gate->value('CREATE TABLE big AS SELECT i AS id FROM generate_series(1, 20000) i');
	$gate->value('ANALYZE big');
	$gate->set(max_active_backends => 2);
	my $query = "SELECT repeat('x', 1000), id FROM big";
	like($parallel->query("EXPLAIN $query"), qr/Workers Planned: 2/, 'a plan has two workers');
	$parallel->start($query);
	$gate->await_wait_event_type($parallel, 'Client');
	$one->query('BEGIN');
	$two->start('SELECT 1');
	$gate->ok_waits($two, 'a parallel query leaves one of two slots');
	is($gate->gauges, '2|0|1', 'and counts as one backend');
	$parallel->result;
	$two->finish;
	$one->query('COMMIT');
	$_->quit foreach ($parallel, $one, $two);
	$gate->set(max_active_backends => 1);
}

# The end of one portal is not that of another one, which has the slot.
{
	my $session = $gate->session(session => { 'admission_gate.scope' => 'statement' });
	$session->query('BEGIN');
	$session->parse('s', 'SELECT id FROM t')->bind('a', 's')->execute('a', 1)->bind('b', 's')->flush;
	$session->read_until('s');
	$session->read_until('2');
	is($gate->gauges, '1|0|0', 'a portal that was bound has a slot');
	$session->message('C', "Pa\0")->flush->read_until('3');
	is($gate->gauges, '1|0|0', 'and keeps it when another one is closed');
	$session->parse('', 'SHOW work_mem')->bind('', '')->execute('')->flush->read_until('C');
	is($gate->gauges, '1|0|0', 'and when a command ends that needs none');
	$session->message('C', "Pb\0")->sync->result;
	is($gate->gauges, '0|0|0', 'but not when it is closed itself');
	$session->query('COMMIT');
	$session->quit;
}

$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');
$gate->node->stop;

done_testing();
