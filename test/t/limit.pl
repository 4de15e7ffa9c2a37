# Proves that the limit caps the backends at work: whatever the command and the
# protocol, with one slot taken the next session sleeps until it is given back;
# what does not need a slot passes; the limit follows a reload; of 200 sessions, as many are
# at work as it says, counted by themselves and not by the gate; and with mode = observe,
# nobody waits, but those that would have are counted.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'limit',
	max_active_backends => 1,
	max_connections => 250,
	idle_after => -1,
	wal_level => 'logical',
	max_prepared_transactions => 5,
	init => { allows_streaming => 'logical' });
my $node = $gate->node;

$gate->value('CREATE TABLE t (id int PRIMARY KEY, v int)', 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i');

# With a holder in the only slot, the session starts something, waits, and does
# well once the holder has committed.
sub waits_for_its_turn
{
	my ($what, $session, $start) = @_;

	my $holder = $gate->holder;
	$gate->ok_queues($session, $start, "$what waits for a slot");
	$holder->query('COMMIT');
	return is($session->sqlstate, '00000', "$what runs when it has one");
}

# With a holder in the only slot, the statement does not queue.
sub passes
{
	my ($what, $sql) = @_;

	my $holder = $gate->holder;
	return $gate->ok_runs($gate->session, $sql, "$what passes a full gate");
}

# Commands; for others, and for BEGIN, see snapshot.pl
waits_for_its_turn($_, $gate->session, $_) foreach split /\n/, <<'END';
UPDATE t SET v = 1 WHERE id = 1
MERGE INTO t USING (VALUES (1)) s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 2
COPY t TO STDOUT
CREATE INDEX CONCURRENTLY t_v2 ON t (v)
VACUUM t
PREPARE q AS SELECT 1; EXECUTE q
BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 5 FROM c; COMMIT
SET work_mem = '1MB'; SELECT 1
END

{
	my $holder = $gate->holder;
	my $session = $gate->session;
	$gate->ok_queues($session, 'COPY t FROM STDIN', 'COPY FROM waits for a slot');
	$holder->query('COMMIT');
	is($session->read_until('G')->{stopped}, 'G', 'COPY FROM asks for its data when it has one');
	$session->copy_data("3001\t1\n")->copy_done;
	is($session->sqlstate, '00000', 'COPY FROM stores its data');
}

# Protocols; for single statements and plans from the cache see snapshot.pl
{
	my $session = $gate->session;

	waits_for_its_turn('a utility command in the extended protocol',
		$session, sub { $_[0]->start_extended('VACUUM t') });

	# Several statements before one Sync are one transaction.
	waits_for_its_turn(
		'a pipeline',
		$session,
		sub {
			$_[0]->parse('', 'UPDATE t SET v = 7 WHERE id = $1')->bind('', '', $_)->execute('') foreach (1 .. 3);
			$_[0]->sync;
		});
	is($gate->value('SELECT count(*) FROM t WHERE v = 7'), '3', 'all statements of a pipeline have run');

	# Several Syncs without waiting for the answers.
	my $holder = $gate->holder;
	$session->start_extended('SELECT $1::int', $_) foreach (1 .. 3);
	$gate->ok_waits($session, 'the first transaction of a pipeline waits for a slot');
	$holder->query('COMMIT');
	is(join(',', map { $session->finish } 1 .. 3), '1,2,3', 'all transactions of a pipeline run');
}

# What passes
my $light = "SET work_mem = '1MB';SHOW work_mem;RESET work_mem;PREPARE x AS SELECT count(*) FROM t;COMMIT;ROLLBACK;"
  . 'LISTEN x;NOTIFY x;DISCARD ALL;CHECKPOINT;';
passes($_, $_) foreach split /;/, $light, -1;

# COMMIT PREPARED ends what others may be waiting for.
{
	my $session = $gate->session;
	$session->query("BEGIN; UPDATE t SET v = 8 WHERE id = 8; PREPARE TRANSACTION 'x'");
	my $holder = $gate->holder;
	$gate->ok_runs($session, "COMMIT PREPARED 'x'", 'COMMIT PREPARED passes a full gate');
}

# Walsenders, both kinds.
{
	my $holder = $gate->holder;
	my $sender = $gate->session(replication => 'database');
	$gate->ok_runs($sender, 'SELECT count(*) FROM t', 'SQL in a logical replication connection passes a full gate');
	$gate->ok_runs(
		$sender,
		'CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput',
		'creating a replication slot passes a full gate');
	$node->backup('through_a_full_gate');
	pass('pg_basebackup passes a full gate');
}

$gate->ok_quiet('after all commands and protocols');

# The limit, and its changes
$gate->set(max_active_backends => 3);
{
	my @sessions = map { $gate->session } 1 .. 8;
	$_->start('BEGIN; SELECT 1') foreach @sessions;
	$gate->await_waiting(5);
	is($gate->gauges, '3|5', 'as many run as the limit says, and the rest waits');

	$gate->set(max_active_backends => 5);
	$gate->await_waiting(3);
	is($gate->gauges, '5|3', 'a higher limit lets waiters in at once');

	$gate->set(max_active_backends => 1);
	is($gate->gauges, '5|3', 'a lower limit leaves those running alone');
	my (@running) = grep { $gate->state($_) eq 'running' } @sessions;
	$_->result foreach @running;
	is($running[0]->query('SELECT 2'), '2', 'they finish');
	for my $i (0 .. 3)
	{
		$running[$i]->query('COMMIT');
		is($gate->gauges, (4 - $i) . '|3', 'their slots are not given away above the lower limit');
	}
	$running[4]->query('COMMIT');
	$gate->await_waiting(2);
	is($gate->gauges, '1|2', 'the last one hands its slot to a waiter');

	$gate->set(max_active_backends => 0);
	$gate->await_waiting(0);
	my %was_running = map { $_ => 1 } @running;
	is(join(',', map { $_->finish } grep { !$was_running{$_} } @sessions), '1,1,1', 'no limit releases everybody');
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
	$gate->ok_queues($gate->session, 'SELECT 1', 'a new limit holds at once');
}
$gate->ok_quiet('after the limit was set anew');

# Under load: each session in this function holds an advisory lock, and counts the others'.
$gate->set(max_active_backends => 2);
$gate->value(
	'CREATE FUNCTION at_work() RETURNS bigint VOLATILE LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN
		PERFORM pg_advisory_lock(pg_backend_pid());
		PERFORM pg_sleep(0.001);
		SELECT count(*) INTO n FROM pg_locks WHERE locktype = \'advisory\';
		PERFORM pg_advisory_unlock(pg_backend_pid());
		RETURN n; END $$',
	'CREATE TABLE seen (n bigint)');
my @scripts = map { ('-f', $gate->script($_)) } (
	"SELECT at_work();\nINSERT INTO seen SELECT at_work();\n",
	"BEGIN;\nINSERT INTO seen SELECT at_work();\nSELECT at_work();\nCOMMIT;\n");
for my $mode ('simple', 'extended', 'prepared')
{
	$gate->value('TRUNCATE seen');
	command_ok($gate->pgbench('-c', 200, '-j', 4, '-t', 5, '-M', $mode, @scripts), "200 clients, $mode protocol");
	is($gate->value('SELECT max(n) FROM seen'), '2', 'of these, 2 were at work at the same time and never more');
}
# Only observed
$gate->set(mode => 'observe', max_active_backends => 1);
$gate->value('SELECT pg_stat_admission_gate_reset()');

# Since the last time, would_queue has grown by so many, and nobody has queued.
my $would_queue = 0;

sub would_have_queued
{
	my ($n, $what) = @_;

	$would_queue += $n;
	is($gate->value('SELECT would_queue, queued, forced, rejections FROM pg_stat_admission_gate'),
		"$would_queue|0|0|0", "$what: would_queue + $n");
	return;
}

# What would have queued
{
	my ($one, $two, $three, $four) = map { $gate->session } 1 .. 4;

	$one->query('SELECT 1');
	would_have_queued(0, 'a statement that finds a slot free');
	$one->query('BEGIN');
	$gate->ok_runs($two, 'SELECT 1', 'above the limit, nobody waits');
	would_have_queued(1, 'a statement above the limit');
	$two->query('BEGIN');
	$gate->ok_runs($three, 'BEGIN', 'however far above');
	would_have_queued(2, 'two transactions above the limit');
	is($gate->gauges, '3|0', 'the number in use is above the limit');

	$gate->set(max_queue_length => 0);
	$gate->ok_runs($four, 'SELECT 1', 'nobody is refused either');
	would_have_queued(1, 'one that would have been refused counts as well');
	$gate->set(max_queue_length => -1);

	$two->query('COMMIT');
	$four->query('SELECT 1');
	would_have_queued(1, 'while the count is above the limit');
	$_->query('COMMIT') foreach ($one, $three);
	$four->query('SELECT 1');
	would_have_queued(0, 'when it is below');
	$gate->ok_quiet('after observing');

	# A transaction that may not wait would not have queued.
	$two->query($begins_with_bypass);
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$one->query('BEGIN');
	$two->query('SELECT 1');
	is($gate->counter('ARRAY[would_queue, forced]'), '{0,1}', 'forced admissions are counted as such');
}

# A session that would have queued has the holders looked at.
$gate->set(idle_after => 100);
{
	my $holder = $gate->holder;
	my $session = $gate->session;
	$gate->ok_comes(
		sub {
			$gate->value('SELECT pg_stat_admission_gate_reset()');
			$session->query('SELECT 1');
			return $gate->counter('would_queue') eq '0';
		},
		'beside an idle holder, a session would not have queued');
}
$gate->set(idle_after => -1);

# Switching
{
	$gate->set(mode => 'enforce');
	my $holder = $gate->holder;
	my @waiters = map { $gate->waiter('BEGIN') } 1 .. 5;
	$gate->set(mode => 'observe');
	$_->finish foreach @waiters;
	is($gate->gauges, '6|0', 'when the limit is no longer enforced, all that wait enter');

	$gate->set(mode => 'enforce');
	my $last = $gate->session;
	$gate->ok_queues($last, 'SELECT 1', 'when it is enforced again, new ones wait');
	$_->query('COMMIT') foreach @waiters;
	$gate->ok_waits($last, 'until the count is below the limit');
	$holder->query('COMMIT');
	is($last->finish, '1', 'and then enter');
}
$gate->ok_quiet('after switching');

$gate->ok_one_slot;
$gate->finish;
