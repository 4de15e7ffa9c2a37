# Proves that nobody gets past a full gate but by an application_name that is listed: no
# command runs a user's code or takes a transaction id without a slot, and so spares its
# transaction the wait; a session does not do what it may not do any more when its wait ends;
# and a holder that gets no CPU, waits for a disk, or has its workers work, is at work.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'no_way_past',
	max_active_backends => 1,
	idle_after => -1,
	max_connections => 60);

$gate->value(
	'CREATE ROLE plain LOGIN',
	'GRANT CREATE ON SCHEMA public TO plain',
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i',
	'GRANT ALL ON t TO plain',
	'GRANT SELECT ON t TO PUBLIC',
	'CREATE ROLE named LOGIN',
	"ALTER ROLE named SET application_name = 'exact'",
	'CREATE PROCEDURE nothing(x bigint) LANGUAGE plpgsql AS $$ BEGIN END $$',
	# A check that catches errors, and so works in a subtransaction
	'CREATE FUNCTION checks(int) RETURNS bool LANGUAGE plpgsql AS
		$$ BEGIN PERFORM txid_current() FROM t; RETURN true; EXCEPTION WHEN division_by_zero THEN RETURN false; END $$',
	'CREATE DOMAIN checked AS int CHECK (checks(value))',
	# and one that runs a command
	'CREATE FUNCTION makes(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN CREATE TABLE made (a int); RETURN true; END $$',
	'CREATE DOMAIN making AS int CHECK (makes(value))');

# Commands, and what they evaluate before their statement is admitted
#
# The session waits in the queue, has no transaction id there, and was not forced in.
# Then it is told to stop.
sub ok_waits_without_xid
{
	my ($session, $what) = @_;

	$gate->ok_waits($session, "$what: waits");
	is($gate->value("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = " . $session->pid),
		'0', "$what: has no transaction id");
	is($gate->counter('forced'), '0', "$what: nobody was forced in");
	$session->stop;
	return $session->query('ROLLBACK');
}

my @setup = ('PREPARE p(bigint) AS SELECT $1', 'SET default_transaction_isolation = "read committed"');

# With a statement after it, in one message
my @commands = (
	'EXPLAIN SELECT 1 FROM pg_class WHERE relpages < txid_current()',
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
	'CREATE TABLE made (a int)',
	'LOCK t',
	'SHOW work_mem',
	'LISTEN x',
	'NOTIFY x',
	'UNLISTEN x',
	'DEALLOCATE ALL',
	'DISCARD PLANS',
	'DISCARD TEMP');

{
	my $worker = $gate->worker;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	for my $command (@commands)
	{
		my $session = $gate->session(user => 'plain');
		$session->query(@setup);
		$session->start("$command; SELECT count(*) FROM t");
		ok_waits_without_xid($session, $command);
	}
	$worker->stop;
}

# DISCARD TEMP drops tables, if there are any.
{
	my $session = $gate->session(user => 'plain');
	$session->query('CREATE TEMP TABLE temporary (a int)');
	my $worker = $gate->worker;
	$session->start('DISCARD TEMP; SELECT count(*) FROM t');
	ok_waits_without_xid($session, 'DISCARD TEMP with a temporary table');

	# The conversion of a parameter, which comes before everything that a hook sees
	for my $domain ('checked', 'making')
	{
		$session = $gate->session(user => 'plain');
		$session->parse('', "SELECT \$1::$domain")->bind('', '', '1')->execute('')->sync;
		ok_waits_without_xid($session, "a domain whose check runs a query or a command: $domain");
	}
	$worker->stop;
}

# Where a transaction takes an id that no hook sees, it does not enter for that.
{
	my $session = $gate->session;
	$session->query('BEGIN', 'COMMIT AND CHAIN');
	my $worker = $gate->worker;
	$session->call_function($gate->value(q{SELECT 'txid_current'::regproc::oid}))->result;
	is($gate->value("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = " . $session->pid),
		'1', 'a function call of the fast-path protocol takes a transaction id');
	$gate->ok_queues($session, 'SELECT 1', 'the transaction waits nevertheless');
	$worker->stop;
	$session->result;
	$session->query('COMMIT');
}

$gate->ok_quiet('after commands');

# Rights that end during the wait
$gate->value(
	'CREATE ROLE reader LOGIN',
	'CREATE ROLE readers',
	'CREATE TABLE secret (a int, b int)',
	'INSERT INTO secret VALUES (1, 2)',
	'CREATE FUNCTION answer() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$',
	'REVOKE EXECUTE ON FUNCTION answer FROM public');

# What is granted; the statement, what happens during its wait, and what comes of it: a result
# or a SQLSTATE
my @cases = map { [ split / => /, $_ ] } split /\n/, <<'END';
GRANT SELECT ON secret TO reader => SELECT a FROM secret => REVOKE SELECT ON secret FROM reader => 42501
GRANT SELECT (a) ON secret TO reader => SELECT a FROM secret => REVOKE SELECT (a) ON secret FROM reader => 42501
GRANT SELECT ON secret TO readers; GRANT readers TO reader => SELECT a FROM secret => REVOKE readers FROM reader => 42501
ALTER ROLE reader SUPERUSER => SELECT a FROM secret => ALTER ROLE reader NOSUPERUSER => 42501
GRANT EXECUTE ON FUNCTION answer TO reader => SELECT answer() => REVOKE EXECUTE ON FUNCTION answer FROM reader => 42501
GRANT EXECUTE ON FUNCTION answer TO reader => SELECT answer() => CREATE OR REPLACE FUNCTION answer() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 2; END' => 2
GRANT UPDATE, SELECT ON secret TO reader => UPDATE secret SET b = 3 RETURNING b => REVOKE UPDATE ON secret FROM reader => 42501
END

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
		$worker->stop;
		my $result = $session->result;
		is($result->{error} ? $result->{error}{C} : $result->{rows}[0][0], $expected, "then $change while it waits");
	}
}
$gate->ok_quiet('after the changes of rights');

# Those pass that began with a name of this list; a change of it reaches the sessions there are.
$gate->set(bypass_application_names => 'exact, "two words", "internal id=*"');
my $holder = $gate->holder;

# How a session does while the gate is full
sub passes
{
	my ($session, $what, $sql) = @_;
	return $gate->ok_runs($session, $sql // 'SELECT count(*) FROM t', "passes: $what");
}

sub waits
{
	my ($session, $what) = @_;
	$gate->ok_queues($session, 'SELECT count(*) FROM t', "waits: $what");
	return $session->stop;
}

# Which names
sub named { return $gate->session(application_name => $_[0]); }

passes(named($_), "the name \"$_\"") foreach ('exact', 'two words', 'internal id=', 'internal id=1234567890');
waits(named($_), "the name \"$_\"")
  foreach ('exactly', 'exac', 'Exact', 'two', 'internal id', ' internal id=1', 'two words,', '');
waits($gate->session, 'no name');
passes($gate->session(session => { application_name => 'exact' }), 'a name among the options');
passes($gate->session(user => 'named'), "the role's name");
waits($gate->session(user => 'named', application_name => 'another'), "a name in the place of the role's");

# All that meets the gate
{
	my $session = named('internal id=1');
	passes($session, $_, $_) foreach ('BEGIN', 'SELECT 1', 'COMMIT', 'VACUUM t', 'CREATE TEMP TABLE own AS SELECT 1');
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('prepared', 'SELECT count(*) FROM t');
	passes($session, "a $_ plan of a prepared statement", sub { $session->start_prepared('prepared') })
	  foreach ('new', 'cached');
	is($gate->gauges, '1|0', 'a session that passes is not counted');
}

# What changes it, and what does not
{
	my $session = named('another');
	for my $sql ("SET application_name = 'exact'", "SELECT set_config('application_name', 'internal id=1', false)")
	{
		$holder->query('COMMIT');
		$session->query($sql);
		$holder->query('BEGIN');
		waits($session, "nobody passes by $sql");
	}
	$session = named('exact');
	for my $sql ("SET application_name = 'another'", 'SET admission_gate.bypass = off', 'DISCARD ALL')
	{
		$session->query($sql);
		passes($session, "still so after $sql");
	}
}

# A session that has been at the gate before the reload, and one that has not
{
	my @sessions = map { named('late') } 1 .. 2;
	my $renamed = named('another');
	$renamed->query("SET application_name = 'early'");
	waits($sessions[0], 'a name that is not in the list');
	$gate->set(bypass_application_names => 'early, l*');
	passes($_, 'when the list has it') foreach @sessions;
	waits(named('exact'), 'a name that is in the list no more');
	waits($renamed, 'a name in the list that it has given itself');

	# A mistake changes nothing.  The other setting tells when the session has reread them.
	$gate->node->append_conf('postgresql.auto.conf',
		"admission_gate.bypass_application_names = 'early late'\nlock_timeout = '1h'");
	$gate->value('SELECT pg_reload_conf()');
	$gate->ok_comes(
		sub { $sessions[0]->query('SHOW lock_timeout') eq '1h' },
		'a mistake in the list is in the way of no other setting');
	passes($sessions[0], 'with a mistake in the list, as before');

	$gate->set(bypass_application_names => '');
	waits($_, 'when the list is empty') foreach @sessions;
	$gate->set(bypass_application_names => '*');
	passes($sessions[1], 'any name by "*"');
	passes($gate->session, 'by "*", no name as well');
}
$holder->query('COMMIT');
$gate->set(bypass_application_names => '');
$gate->ok_quiet('after names');

# Beside a holder, the next one waits for some time and has the slot after it: the holder
# counts as at work, nor is it made up for.
sub ok_keeps_slot
{
	my ($what, $end) = @_;

	my $other = $gate->session;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$other->start('SELECT 1');
	$gate->await_true(sub { $gate->counter('queued') eq '1' }, 'a waiting session');
	sleep 1;
	$gate->await_samples(20);
	my $counts = $gate->counter('ARRAY[running, waiting, stalls]');
	$end->();
	is($counts, '{1,1,0}', "$what keeps its slot");
	return is($other->finish, '1', 'and the next has it after it');
}

# The leader does nothing, its workers do.
$gate->set(max_active_backends => 1, idle_after => 300);
{
	my $query = $gate->session;
	$gate->value(
		'ALTER TABLE t SET (parallel_workers = 2)',
		'CREATE FUNCTION spins(int) RETURNS bool PARALLEL SAFE COST 10000 LANGUAGE plpgsql AS
		$$ BEGIN LOOP END LOOP; END $$');
	$query->query(
		map { "SET $_" } 'parallel_setup_cost = 0',
		'parallel_tuple_cost = 0',
		'min_parallel_table_scan_size = 0',
		'max_parallel_workers_per_gather = 2',
		'parallel_leader_participation = off');
	$query->start('SELECT count(*) FROM t WHERE spins(id)');
	$gate->await("SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'parallel worker'", 'two workers');
	ok_keeps_slot('a parallel query whose workers work', sub { $query->stop });
}

# A holder that gets no CPU, because others than the server want it, is at work.
$gate->set(idle_after => 10);
{
	my $worker = $gate->worker;
	my ($cores) = `nproc` =~ /(\d+)/;
	my @hogs = map { IPC::Run::start([ $^X, '-e', 'alarm 20; 1 while 1' ]) } 1 .. 5 * ($cores // 4);
	ok_keeps_slot(
		'a holder that waits for a CPU',
		sub {
			$gate->stop_crowd(@hogs);
			$worker->stop;
		});
}

# So is one that waits for a disk.  It is stopped in such a wait, where neither its CPU
# time nor its state tells.
{
	my $worker = $gate->session(session => { work_mem => 64 });
	$worker->start('DO $$ BEGIN LOOP PERFORM count(*) FROM generate_series(1, 100000); END LOOP; END $$');
	$gate->await_true(
		sub {
			kill STOP => $worker->pid;
			usleep(5_000);
			return 1 if $gate->activity($worker, 'wait_event_type') eq 'IO';
			kill CONT => $worker->pid;
			return 0;
		},
		'a wait for a disk');
	ok_keeps_slot('a holder that waits for a disk', sub { kill CONT => $worker->pid; $worker->stop });
}

$gate->finish;
