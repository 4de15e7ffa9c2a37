# Proves that a limit bounds the backends at work: a holder that is not at work does not
# keep others out, whether it waits for its client, a timer or one in the queue; that a
# transaction which was admitted once never waits at the gate again; and that commands which
# wait for others in the middle of their work do not hang behind the gate: those that wait for
# sessions in the queue, and those that open connections to the same server.  For parallel
# queries, see no_way_past.pl and short_cpus.pl.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;
use List::Util qw(max);

my $gate = GateTest->new(
	'at_work',
	wal_level => 'logical',
	max_worker_processes => 16,
	init => { allows_streaming => 'logical' });

$gate->value('CREATE TABLE t (id int PRIMARY KEY, v int)', 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i');

# More than any socket buffers
my $huge_result = "SELECT repeat('x', 1000) FROM generate_series(1, 30000)";

# The session can run a statement.
sub works
{
	my ($session, $what) = @_;
	return is($session->query('SELECT count(*) FROM t WHERE id = 1'), '1', $what);
}

# Waits for locks

# A transaction goes on, though another one that waits for it has the only slot: whether it
# began before the limit; idle_after; what it does; what the other one does, and what it waits
# for at last.  Those from before the limit are forced in.  In DO, a table is not locked before
# the gate.  BufferPin is Buffer from PostgreSQL 19 on.
my $update = 'UPDATE t SET v = v + 1 WHERE id = 1';
my $lock = 'SELECT pg_advisory_xact_lock(1)';
my $do = "DO \$\$ BEGIN $update; END \$\$";
my $vacuum = 'VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t';
for (
	[ 'a row lock', 0, 100, ["BEGIN; $update"], [$update], 'Lock' ],
	[ 'a row lock from before the limit', 1, -1, ["BEGIN; $update"], [$update], 'Lock' ],
	[ 'a savepoint from before the limit', 1, -1, ["BEGIN; SAVEPOINT a; $lock"], [$lock], 'Lock' ],
	[ 'a table lock from before the limit', 1, 100, ['BEGIN; LOCK t IN SHARE MODE'], [$do], 'Lock' ],
	[
		'a buffer pin from before the limit',
		1, 100,
		[ 'UPDATE t SET v = v + 1 WHERE id < 10', 'BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH 1 FROM c' ],
		[$vacuum], 'Buffer%'
	],
	[
		'a safe snapshot',
		0, 100,
		["BEGIN ISOLATION LEVEL SERIALIZABLE; $update"],
		[ 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE', 'SELECT count(*) FROM t' ], 'IPC'
	])
{
	my ($what, $before, $idle_after, $of_owner, $of_waiter, $waits_for) = @$_;
	$gate->piece(
		$what,
		{ max_active_backends => $before ? 0 : 1, idle_after => $idle_after },
		sub {
			my ($owner, $waiter) = map { $gate->session } 1 .. 2;
			my @of_waiter = @$of_waiter;
			my $waits = pop @of_waiter;
			$owner->query(@$of_owner);
			$gate->set(max_active_backends => 1);
			$waiter->query(@of_waiter);
			$waiter->start($waits);
			$gate->await_wait_event_type($waiter, $waits_for);
			works($owner, "$what: its owner goes on beside the one that waits for it");
			$owner->query('COMMIT');
			is($waiter->sqlstate, '00000', 'and the waiter has it when it commits');
		});
}

# A lone SERIALIZABLE statement has its snapshot when it enters the queue.
$gate->piece(
	'a safe snapshot and its queued owner',
	{ max_active_backends => 1, idle_after => -1 },
	sub {
		my $owner = $gate->session(session => { default_transaction_isolation => 'serializable' });
		my $holder = $gate->session;
		$holder->query('BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE');
		$gate->queue($owner, $update);
		# It waits for a moment only: there is no time to see that.
		$holder->start('SELECT count(*) FROM t');
		$gate->set(idle_after => 100);
		is($owner->sqlstate, '00000', 'one in the queue is let in beside the holder that waits for a safe snapshot');
		is($holder->sqlstate, '00000', 'and the holder has it');
	});

# A commit wakes all that wait for its row, and all but one wait again.  So one that has waited
# for a lock counts from its next statement on, or later than these work.
my $of_works =
  "DECLARE e timestamptz := clock_timestamp() + interval '20 ms'; BEGIN WHILE clock_timestamp() < e LOOP END LOOP; END";
for (
	[
		'the statement that waited',
		'no work', "BEGIN; DO \$\$ BEGIN PERFORM pg_advisory_xact_lock(1); $of_works; END \$\$; COMMIT;"
	],
	[ 'the next statement', 'work', "BEGIN;\n$lock;\nDO \$\$ $of_works \$\$;\nCOMMIT;" ])
{
	my ($what, $is, $script) = @$_;
	$gate->piece(
		"$what for a lock",
		{ max_active_backends => 3, hot_spots => 'off' },
		sub {
			my $crowd = $gate->crowd(6, $script);
			$gate->ok_comes(
				sub {
					my $works = grep { usleep(20_000); $gate->counter('running > 3 AND working > 0') eq 't' } 1 .. 20;
					return $is eq 'work' ? $works > 10 : $works < 5 && $gate->counter('running') > 3;
				},
				"$what for a lock is $is");
			$gate->stop_crowd($crowd);
		});
}
$gate->set(hot_spots => 'on');

# Waits for clients
$gate->piece(
	'idle transactions',
	{ max_active_backends => 3 },
	sub {
		my @idle = map { $gate->holder } 1 .. 3;
		my $next = $gate->session;
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		works($next, 'a session works although all slots are held by idle transactions');
		is($gate->counter('stalls'), '0', 'by the limit, not by the last resort');

		my @more = map { $gate->session } 1 .. 10;
		$_->start('BEGIN; SELECT 1') foreach @more;
		is(join(',', map { $_->finish } @more), join(',', (1) x 10), 'so do many, that become idle in turn');
		works($_, 'an idle transaction goes on') foreach @idle;
		$_->query('COMMIT') foreach (@idle, @more);
	});

$gate->piece(
	'sessions that sleep in a statement',
	{ max_active_backends => 4 },
	sub {
		my @sleepers = map { $gate->session } 1 .. 30;
		$_->start('SELECT pg_sleep(2000)') foreach @sleepers;
		$gate->await('SELECT running = 30 AND working = 0 FROM pg_stat_admission_gate');
		works($gate->session, 'a session works beside 30 sleepers in a gate of four');
	});

# A session works beside another one, after that has done something; what comes then
my $portal = 'SELECT id FROM t ORDER BY id';
my %ways_to_wait = (
	'a client that does not read' => [
		sub { $_[0]->start($huge_result); $gate->await_wait_event_type($_[0], 'Client') },
		sub { is(scalar @{ $_[0]->result->{rows} }, 30000, 'it has it all when the client reads on') }
	],
	'COPY FROM stalled by its client' => [
		sub { $_[0]->start('COPY t FROM STDIN')->read_until('G'); $_[0]->copy_data("2001\t0\n") },
		sub {
			my ($copy, $next) = @_;
			$copy->copy_data("2002\t0\n");
			works($next, 'and between its data');
			$copy->copy_done;
			is($copy->result->{tags}[0], 'COPY 2', 'the COPY FROM ends well');
			$next->query('DELETE FROM t WHERE id > 1000');
		}
	],
	'a cursor WITH HOLD after its transaction' => [
		sub { $_[0]->query("BEGIN; DECLARE h CURSOR WITH HOLD FOR $portal; COMMIT") },
		sub { $_[1]->query('BEGIN'); is($_[0]->query('FETCH FROM h'), '1', 'it is read beside an idle holder') }
	],
	'a suspended portal without Sync' => [
		sub { $_[0]->parse('', $portal)->bind('', '')->execute('', 2)->flush->read_until('s') },
		sub {
			my ($session, $next) = @_;
			$session->execute('', 1)->flush->read_until('s');
			works($next, 'and after more rows');
			is($session->sync->finish, "1\n2\n3", 'the rows are all there');
		}
	],
	'a bound portal' => [
		sub { $_[0]->parse('', 'SELECT id FROM t WHERE id = 7')->bind('', '')->flush->read_until('2') },
		sub { is($_[0]->execute('')->sync->finish, '7', 'it executes later') }
	]);
for my $what (sort keys %ways_to_wait)
{
	my ($wait, $go_on) = @{ $ways_to_wait{$what} };
	$gate->piece(
		$what,
		{ max_active_backends => 1 },
		sub {
			my ($session, $next) = map { $gate->session } 1 .. 2;
			$wait->($session);
			works($next, "a session works beside $what");
			$go_on->($session, $next);
		});
}

# Statements are no work by themselves.
$gate->piece(
	'transactions that send statements',
	{ max_active_backends => 4 },
	sub {
		my @chatty = map { $gate->holder } 1 .. 4;
		my $next = $gate->session;
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		$next->start('SELECT 2');
		$gate->ok_comes(sub { $_->query('SELECT 1') foreach @chatty; usleep(20_000); $next->done },
			'a short statement every 30 ms of each lets a session in');
		is($gate->counter('stalls'), '0', 'by the limit');
		$_->query('COMMIT') foreach @chatty;
	});

# Those that come to work again do so at once, above the limit; then none enters.
$gate->piece(
	'idle transactions that work again',
	{ max_active_backends => 2 },
	sub {
		my @sessions = map { $gate->holder } 1 .. 5;
		my $next = $gate->session;
		$_->start('DO $$ BEGIN LOOP END LOOP; END $$') foreach @sessions;
		$gate->ok_comes(sub { $gate->counter('working') eq '5' }, 'five at work at a limit of two');
		$gate->ok_queues($next, 'SELECT 1', 'keep another one out');
		$gate->await_samples(20);
		$_->stop foreach @sessions[ 0 .. 2 ];
		$gate->await_samples(5);
		$gate->ok_waits($next, 'as do two');
		$sessions[3]->stop;
		is($next->finish, '1', 'when one is left, it enters');
		$sessions[4]->stop;
	});

# Who counts
$gate->piece(
	'sessions at work',
	{ max_active_backends => 4 },
	sub {
		my @sessions = map { $gate->session } 1 .. 30;
		$gate->value('SELECT pg_stat_admission_gate_reset()');
		$_->start('DO $$ BEGIN LOOP END LOOP; END $$') foreach @sessions;
		$gate->ok_comes(sub { $gate->counter('ARRAY[running, working, waiting]') eq '{4,4,26}' },
			'four of 30 that would work do');
		my $most = 0;
		for (1 .. 20)
		{
			$gate->await_samples(5);
			# If the gate's worker gets no CPU for seconds, the gate helps itself.
			$most = max($most, $gate->counter('running - stalls'));
		}
		is($most, 4, 'and it stays so');
	});

# Commands that wait for others in the middle of their work
my %lock = (max_active_backends => 1);
my ($host, $port) = ($gate->node->host, $gate->node->port);

$gate->value(
	'CREATE INDEX t_v ON t (v)',
	'CREATE MATERIALIZED VIEW m AS SELECT * FROM t',
	'CREATE UNIQUE INDEX ON m (id)',
	'CREATE TABLE parent (id int PRIMARY KEY)',
	'INSERT INTO parent VALUES (1)',
	'CREATE TABLE child (id int REFERENCES parent)',
	'CREATE PROCEDURE lock_and_commit() LANGUAGE plpgsql AS
		$$ BEGIN FOR i IN 1..5 LOOP LOCK t; COMMIT; END LOOP; END $$');

# Queues the command behind a worker, and others behind it; then the worker ends.  Returns
# the SQLSTATEs.
sub in_a_queue
{
	my ($command, $others, $sql) = @_;

	my $worker = $gate->worker;
	my $session = $gate->waiter($command);
	$others->[$_]->start($sql->[$_]) foreach (0 .. $#$others);
	$gate->await_waiting(1 + @$others);
	$worker->stop;
	return join ' ', map { $_->sqlstate } $session, @$others;
}

# Commands that need the locks of those in the queue, and what to do before each.  Behind
# each command, readers, a writer and a statement with a snapshot enter the queue, and all of
# them have locked the table before: so they are let in above the limit.
my %commands = (
	'VACUUM FULL t' => '',
	'CLUSTER t USING t_pkey' => '',
	'REINDEX TABLE CONCURRENTLY t' => '',
	'CREATE INDEX CONCURRENTLY t_v2 ON t (v)' => 'DROP INDEX IF EXISTS t_v2',
	'DROP INDEX CONCURRENTLY t_v2' => 'CREATE INDEX IF NOT EXISTS t_v2 ON t (v)',
	'CALL lock_and_commit()' => '',
	'REFRESH MATERIALIZED VIEW m' => '',
	'ALTER TABLE t ALTER v SET DEFAULT 0' => '',
	'TRUNCATE child, parent' => 'INSERT INTO parent VALUES (1) ON CONFLICT DO NOTHING');

for my $command (sort keys %commands)
{
	$gate->piece(
		$command,
		{ %lock, idle_after => -1 },
		sub {
			$gate->value('SELECT pg_stat_admission_gate_reset()', $commands{$command});
			my @others = map { $gate->session } 1 .. 5;
			$others[4]->query('SET default_transaction_isolation = "repeatable read"');
			my @sql = ('SELECT count(*) FROM t, m WHERE t.id = m.id') x 5;
			@sql[ 2, 3 ] = ('UPDATE t SET v = v WHERE id = 1', 'INSERT INTO child SELECT id FROM parent');
			is( in_a_queue($command, \@others, \@sql),
				join(' ', ('00000') x 6),
				"$command runs beside a queue of sessions that have locked its table, and so do they");
			cmp_ok($gate->counter('stalls'), '>', 0, "$command: above the limit");
		});
}

# DROP DATABASE asks every process to close its files, and may end them: those in the queue
# answer to it, and can be terminated.
for my $case ([ 'DROP DATABASE d', 'postgres', 'SELECT 1', '00000' ],
	[ 'DROP DATABASE d WITH (FORCE)', 'd', 'SELECT pg_sleep(600)', '57P01' ])
{
	my ($command, $database, $sql, $end) = @$case;
	$gate->piece(
		$command,
		{ %lock, idle_after => -1 },
		sub {
			$gate->value('DROP DATABASE IF EXISTS d', 'CREATE DATABASE d');
			my @others = map { $gate->session(database => $database) } 1 .. 3;
			is( in_a_queue($command, \@others, [ ($sql) x 3 ]),
				"00000 $end $end $end",
				"$command runs beside a queue in $database");
		});
}

# Connections to the same server: what each of so many sessions reads or writes, at that limit,
# and what comes of it
my $connection = "host=$host port=$port dbname=postgres";
my $write = 'BEGIN; UPDATE far SET v = 3 WHERE id < 4; SELECT count(*) FROM far WHERE v = 3; COMMIT';
my $join = 'SELECT count(*) FROM far a JOIN far b USING (id)';
my @loops = (
	[ 'postgres_fdw writes', 1, 1, $write, '3' ],
	[ 'postgres_fdw reads twice, in two sessions', 2, 1, $join, '1000' ],
	[ 'postgres_fdw reads twice, in three sessions', 3, 2, $join, '1000' ],
	[ 'dblink writes', 1, 1, "SELECT dblink_exec('$connection', 'UPDATE t SET v = 4 WHERE id < 5')", 'UPDATE 4' ]);
my $contrib = q{FROM pg_available_extensions WHERE name IN ('dblink', 'postgres_fdw')};
@loops = () if $gate->value("SELECT count(*) $contrib") ne '2';
$gate->value(
	'CREATE EXTENSION dblink',
	'CREATE EXTENSION postgres_fdw',
	"CREATE SERVER loop FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres')",
	'CREATE USER MAPPING FOR PUBLIC SERVER loop',
	q{CREATE FOREIGN TABLE far (id int, v int) SERVER loop OPTIONS (table_name 't')}) if @loops;

for (@loops)
{
	my ($what, $n, $limit, $sql, $answer) = @$_;
	$gate->piece(
		$what,
		{ max_active_backends => $limit },
		sub {
			my @sessions = map { $gate->session } 1 .. $n;
			$_->start($sql) foreach @sessions;
			is(join(',', map { $_->finish } @sessions), join(',', ($answer) x $n), "$what, at a limit of $limit");
		});
}

# A program, which shows no wait event: the CPU clock tells
$gate->piece(
	'COPY FROM PROGRAM',
	\%lock,
	sub {
		my $psql = $gate->node->config_data('--bindir') . "/psql -XAtq -h $host -p $port -d postgres";
		$gate->value('CREATE TABLE IF NOT EXISTS counted (n int)');
		is( $gate->session->query(
				"COPY counted FROM PROGRAM '$psql -c \"SELECT count(*) FROM t\"'; SELECT n FROM counted"),
			'1000',
			'COPY FROM PROGRAM reads from the same server at a limit of one');
	});

# Logical replication within the server: its processes pass, so nobody has to enter beside the holder.
$gate->set(max_active_backends => 1, idle_after => -1);
{
	$gate->value('CREATE DATABASE subscriber');
	my $there = $gate->session(database => 'subscriber', session => { 'admission_gate.bypass' => 'on' });
	# With a trigger, or apply would run no query; before it has written anything, or it would
	# be forced in at worst.
	$there->query(
		'CREATE TABLE t (id int PRIMARY KEY, v int)',
		'CREATE FUNCTION count_all() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM count(*) FROM public.t; RETURN NEW; END $$',
		'CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION count_all()',
		'ALTER TABLE t ENABLE ALWAYS TRIGGER tr');
	$gate->value('CREATE PUBLICATION p FOR TABLE t', "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
	my $holder = $gate->holder;
	$there->query(
		"CREATE SUBSCRIPTION s CONNECTION '$connection'
		PUBLICATION p WITH (create_slot = false, slot_name = 's')");
	$gate->ok_comes(sub { $there->query('SELECT count(*) FROM t') eq '1000' },
		'logical replication copies beside a full gate');
	$gate->value('INSERT INTO t VALUES (5001, 1)');
	$gate->ok_comes(sub { $there->query('SELECT count(*) FROM t') eq '1001' }, 'and applies');
}
$gate->finish;
