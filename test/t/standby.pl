# Proves that a hot standby has a gate like a primary: reads are capped, recovery
# conflicts cancel waiters only if they are in the way, replay does not wait for the
# queue, and this outlives a restart of the primary and a promotion.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

GateTest::use_two_cpus();
my $primary = GateTest->new(
	'primary',
	idle_after => -1,
	max_standby_streaming_delay => '100ms',
	wal_receiver_status_interval => '100ms',
	init => { allows_streaming => 1 });
$primary->value(
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i',
	'CREATE TABLE gone (a int)',
	'CREATE DATABASE gone');
$primary->node->backup('b');

my $node = PostgreSQL::Test::Cluster->new('standby');
$node->init_from_backup($primary->node, 'b', has_streaming => 1);
my $standby = GateTest->around($node);
$standby->configure(max_active_backends => 1);
$node->start;

sub catch_up { return $primary->node->wait_for_catchup($node, 'replay', $primary->node->lsn('insert')); }

# The cap
{
	my $holder = $standby->holder;
	my $session = $standby->session;
	for my $sql ('COPY t TO STDOUT', 'EXPLAIN ANALYZE SELECT count(*) FROM t', 'BEGIN')
	{
		$standby->ok_queues($session, $sql, "on a standby, $sql waits for a slot");
		$holder->query('COMMIT');
		is($session->sqlstate, '00000', 'and runs when it has one');
		$session->query('COMMIT');
		$holder->query('BEGIN');
	}
	$standby->ok_queues($session, 'SELECT count(*) FROM t', 'so does a SELECT');
	is($standby->activity($session, 'backend_xmin IS NULL'), 't', 'without a snapshot');
	$primary->value('INSERT INTO t VALUES (1001, 0)');
	catch_up();
	$holder->query('COMMIT');
	is($session->finish, '101', 'and sees what was replayed while it waited');
	$standby->ok_quiet('on a standby, after all commands');
}

# Recovery conflicts
{
	local $GateClient::patience = 50;    # the last resort comes after a minute
	my $holder = $standby->holder;
	my ($reader, $repeatable, $last) = map { $standby->session } 1 .. 3;

	# Rows that a snapshot may see are removed: a waiter that has none is not in the way.
	$repeatable->query('SET default_transaction_isolation = "repeatable read"');
	$standby->queue($_, 'SELECT count(*) FROM t') foreach ($reader, $repeatable);
	$primary->value('UPDATE t SET v = v + 1', 'VACUUM t');
	catch_up();
	is($repeatable->sqlstate, '40001', 'a recovery conflict cancels a waiter that has a snapshot');
	is($standby->state($reader), 'waiting', 'but not one that has none');
	$reader->stop;

	# A lock that a waiter has taken
	$standby->set(max_standby_streaming_delay => -1);
	$standby->queue($reader, 'SELECT count(*) FROM gone');
	$standby->queue($last, 'SELECT 1');
	$primary->value('DROP TABLE gone');
	is($reader->sqlstate, '00000', 'a waiter that has locked a table is let in when replay waits for it');
	catch_up();
	is($standby->gauges, '1|1', 'but no other');
	$standby->set(max_standby_streaming_delay => 100);

	# A database
	my $there = $standby->waiter('SELECT 1', database => 'gone');
	$primary->value('DROP DATABASE gone');
	catch_up();
	is($there->sqlstate, '57P04', 'a dropped database ends a waiter in it');

	$standby->await_waiting(1);
	$holder->query('COMMIT');
	is($last->finish, '1', 'the queue goes on after conflicts');
	$standby->end_sessions;
	$standby->ok_quiet('after recovery conflicts');
}

# Hot spots: an advisory lock
{
	$standby->set(max_active_backends => -1);
	my $crowd = $standby->crowd(24, 'SELECT pg_advisory_lock(1), pg_sleep(0.005), pg_advisory_unlock(1);');
	$standby->ok_comes(
		q{count(*) > 0 FROM pg_stat_admission_gate_hot_spots WHERE kind = 'advisory' AND max_active > 0 AND waiting > 0},
		'on a standby, an advisory lock can be hot');
	$standby->ok_stops($crowd);
	$standby->set(max_active_backends => 1);
}

# Restart of the primary, restart of the standby, promotion
{
	my $worker = $standby->worker;
	my @waiters = map { $standby->waiter('SELECT count(*) > 0 FROM t') } 1 .. 3;
	$primary->restart('fast');
	$primary->await_restart;
	$primary->value('INSERT INTO t VALUES (1002, 0)');
	catch_up();
	is($standby->gauges, '1|3', 'a restart of the primary does not touch the queue of the standby');
	$worker->stop;
	is(join(',', map { $_->finish } @waiters), 't,t,t', 'which goes on');

	$worker = $standby->worker;
	$standby->queue($_, 'SELECT 1') foreach @waiters;
	$standby->restart('fast');
	ok($standby->await_restart, 'a fast restart of the standby does not wait for its queue');
	$standby->ok_quiet('after a restart of the standby');

	$worker = $standby->worker;
	@waiters =
	  map { $standby->waiter($_) } 'SELECT count(*) > 0 FROM t', 'INSERT INTO t VALUES (1003, 0)', 'BEGIN';
	$node->promote;
	is($standby->gauges, '1|3', 'a promotion does not touch the queue');
	is($standby->state($worker), 'running', 'nor the holder');
	$worker->stop;
	is($waiters[0]->sqlstate, '00000', 'a waiting SELECT runs after the promotion');
	is($waiters[1]->sqlstate, '25006', 'a waiting INSERT was begun read-only, as ever before a promotion');
	is($waiters[2]->sqlstate, '00000', 'a waiting BEGIN begins');
	$waiters[2]->query('COMMIT');
	$waiters[1]->query('INSERT INTO t VALUES (1003, 0)');
	is($standby->value('SELECT count(*) FROM t WHERE id = 1003'), '1', 'the sessions can write from then on');
	$standby->ok_quiet('after the promotion');
}

$standby->finish;
