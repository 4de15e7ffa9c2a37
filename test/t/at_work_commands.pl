# Proves that commands which wait for others in the middle of their work do not
# hang behind the gate: those that wait for sessions in the queue, those
# that open connections to the same server, parallel queries, and what runs
# inside statements and at commit.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'at_work_commands',
	wal_level => 'logical',
	max_worker_processes => 16,
	init => { allows_streaming => 'logical' });
my %lock = (max_active_backends => 1);
my ($host, $port) = ($gate->node->host, $gate->node->port);

$gate->value(
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i',
	'CREATE INDEX t_v ON t (v)',
	'CREATE MATERIALIZED VIEW m AS SELECT * FROM t',
	'CREATE UNIQUE INDEX ON m (id)',
	'CREATE TABLE parent (id int PRIMARY KEY)',
	'INSERT INTO parent VALUES (1)',
	'CREATE TABLE child (id int REFERENCES parent)',
	'CREATE TABLE locked AS SELECT 1 AS a',

	# Meets advisory lock 1.
	'CREATE FUNCTION meet() RETURNS int VOLATILE LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN 1; END $$',
	'CREATE FUNCTION meet_and_catch() RETURNS int LANGUAGE plpgsql AS
		$$ BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN RETURN meet(); END $$',
	'CREATE FUNCTION meet_in_trigger() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM meet(); RETURN NEW; END $$',
	'CREATE PROCEDURE meet_and_commit() LANGUAGE plpgsql AS
		$$ BEGIN FOR i IN 1..5 LOOP PERFORM meet(); COMMIT; END LOOP; END $$',
	'CREATE PROCEDURE lock_and_commit() LANGUAGE plpgsql AS
		$$ BEGIN FOR i IN 1..5 LOOP LOCK t; COMMIT; END LOOP; END $$',
	'CREATE TABLE deferred (a int)',
	'CREATE CONSTRAINT TRIGGER tr AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION meet_in_trigger()',

	# Workers wait for a table.
	'CREATE FUNCTION read_locked(int) RETURNS int PARALLEL SAFE LANGUAGE plpgsql AS
		$$ BEGIN RETURN (SELECT a FROM locked); END $$');

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

# A piece in which one in the queue is let in above the limit, because the holder waits for it
sub let_in
{
	my ($what, $code) = @_;

	return $gate->piece(
		$what,
		{ %lock, idle_after => -1 },
		sub {
			$gate->value('SELECT pg_stat_admission_gate_reset()');
			$code->();
			cmp_ok($gate->counter('stalls'), '>', 0, "$what: above the limit");
		});
}

# Commands that need the locks of those in the queue, and what to do before each.  Behind
# each command, readers, a writer and a statement with a snapshot enter the queue, and all of
# them have locked the table before.
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
	let_in(
		$command,
		sub {
			$gate->value($commands{$command});
			my @others = map { $gate->session } 1 .. 5;
			$others[4]->query('SET default_transaction_isolation = "repeatable read"');
			my @sql = ('SELECT count(*) FROM t, m WHERE t.id = m.id') x 5;
			@sql[ 2, 3 ] = ('UPDATE t SET v = v WHERE id = 1', 'INSERT INTO child SELECT id FROM parent');
			is( in_a_queue($command, \@others, \@sql),
				join(' ', ('00000') x 6),
				"$command runs beside a queue of sessions that have locked its table, and so do they");
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

# What runs inside statements and at commit, waiting for a session in the queue
my %waits = (
	'a PL/pgSQL exception' => 'SELECT meet_and_catch()',
	'a procedure that commits' => 'CALL meet_and_commit()',
	'a deferred constraint at COMMIT of a block' => 'BEGIN; INSERT INTO deferred VALUES (1); COMMIT');
for my $what (sort keys %waits)
{
	let_in(
		$what,
		sub {
			my $owner = $gate->session;
			$owner->query('SELECT pg_advisory_lock(1)');
			is(in_a_queue($waits{$what}, [$owner], ['SELECT pg_advisory_unlock(1)']),
				'00000 00000',
				"$what waits for the lock of a queued session and has it, because the gate lets that in");
		});
}

# Parallel queries: waits beside which others work
for my $workers (4, 0)
{
	$gate->piece(
		"a parallel query with $workers workers",
		{ %lock, max_parallel_workers => $workers },
		sub {
			my ($session, $next) = map { $gate->session } 1 .. 2;
			$session->query(
				'SET min_parallel_table_scan_size = 0',
				'SET parallel_setup_cost = 0',
				'SET parallel_tuple_cost = 0',
				'SET jit = on',
				'SET jit_above_cost = 0',
				'SET parallel_leader_participation = ' . ($workers ? 'off' : 'on'));
			my $query = 'SELECT count(*) FROM t WHERE read_locked(id) = 1';
			my $plan = $session->query("EXPLAIN (ANALYZE, COSTS off) $query");
			like(
				$plan,
				$workers ? qr/Workers Launched: [1-9]/ : qr/Workers Launched: 0/,
				"a parallel query runs at a limit of one with $workers workers available");
			is($session->query($query), '1000', 'and is right');

			my $owner = $gate->session(session => { 'admission_gate.bypass' => 'on' });
			$owner->query('BEGIN; LOCK locked');
			$session->start($query);
			$gate->await("SELECT count(*) > 0 FROM pg_locks WHERE relation = 'locked'::regclass AND NOT granted");
			is($next->query('SELECT 1'), '1', 'a session works while all its processes wait for a lock');
			is($gate->counter('ARRAY[running, working, waiting]'), '{1,0,0}', 'which count as one backend');
			$owner->query('COMMIT');
			is($session->finish, '1000', 'and it ends well');
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
