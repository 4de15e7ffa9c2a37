# Proves that no slot is left behind and no wake-up lost, however a statement, a transaction
# or a session ends: after each ending all gauges are zero and the next session is admitted
# at once; and that a refused BEGIN leaves its transaction open and bound to fail.  For the end
# of a server, see chaos.pl and standby.pl.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'endings',
	max_active_backends => 1,
	idle_after => -1,
	max_prepared_transactions => 5);

$gate->value(
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i',
	'CREATE TABLE dup AS SELECT 1 AS a FROM generate_series(1, 2)',
	'CREATE TABLE parent (id int PRIMARY KEY)',
	'CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)',
	'INSERT INTO parent VALUES (1)',
	'CREATE FUNCTION fails() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM count(*) FROM t; RETURN 1/0; END $$',
	'CREATE FUNCTION counts() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM t); END $$',
	'CREATE FUNCTION immutable_count(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN $1 + (SELECT count(*) FROM pg_class WHERE false); END $$',

	# Stops at advisory lock 1 between two of its transactions.
	'CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN
		UPDATE t SET v = v + 1 WHERE id = 1; COMMIT;
		PERFORM pg_advisory_lock_shared(1); PERFORM pg_advisory_unlock_shared(1); COMMIT;
		UPDATE t SET v = v + 1 WHERE id = 1; ROLLBACK;
		PERFORM count(*) FROM t; END $$',
	'CREATE PROCEDURE commits_and_fails() LANGUAGE plpgsql AS $$ BEGIN
		UPDATE t SET v = v + 1 WHERE id = 1; COMMIT;
		PERFORM 1/0; END $$');

# Statements and transactions
#
# A statement ends with that SQLSTATE, 00000 if there is none; then the slot is free, or kept (+).
sub ok_ends
{
	my ($session, $step, $start) = @_;
	my ($kept, $sqlstate, $sql) = $step =~ /^(\+?)(?:(\d\w\w\d\d) )?(.*)/;

	$start ? $start->($session) : $session->start($sql);
	is($session->sqlstate, $sqlstate // '00000', "the end of $sql");
	return $kept ? is($gate->gauges, '1|0', "after $sql: the slot is kept") : $gate->ok_quiet("after $sql");
}

# A session a line: the slot goes back at the error, not only at the ROLLBACK; a
# subtransaction's end is not the transaction's; and queries run in the middle of a commit.
foreach my $line (split /\n/, <<'END')
22012 SELECT 1/v FROM t
22012 DO $$ BEGIN PERFORM fails(); END $$
23505 INSERT INTO t VALUES (1)
23505 CREATE UNIQUE INDEX CONCURRENTLY dup_a ON dup (a)
23503 INSERT INTO child VALUES (2)
22012 COPY (SELECT 1/v FROM t) TO STDOUT
22012 EXPLAIN ANALYZE SELECT 1/v FROM t
22012 CALL commits_and_fails()
42P01 VACUUM nowhere
42601 SELEKT
22012 SELECT 1; SELECT 1/0
DO $$ BEGIN PERFORM fails(); EXCEPTION WHEN division_by_zero THEN PERFORM count(*) FROM t; END $$
BEGIN; UPDATE t SET v = 5 WHERE id = 5; PREPARE TRANSACTION 'a' // COMMIT PREPARED 'a'
BEGIN; UPDATE t SET v = 5 WHERE id = 5; PREPARE TRANSACTION 'b' // ROLLBACK PREPARED 'b'
+BEGIN; CREATE TEMP TABLE x (a int) // 0A000 PREPARE TRANSACTION 'c'
+BEGIN // 22012 SELECT 1/0 // ROLLBACK
+BEGIN; SAVEPOINT a // +22012 SELECT 1/0 // +ROLLBACK TO a // SAVEPOINT b; RELEASE a; COMMIT
CREATE TEMP TABLE c (a int) ON COMMIT DELETE ROWS // CREATE INDEX ON c (immutable_count(a)) // INSERT INTO c VALUES (1)
BEGIN; INSERT INTO child VALUES (1); DECLARE c CURSOR WITH HOLD FOR SELECT counts() FROM t; COMMIT // FETCH 5 FROM c
+BEGIN; DECLARE d CURSOR WITH HOLD FOR SELECT 1/v FROM t // 22012 COMMIT
END
{
	my $session = $gate->session;
	ok_ends($session, $_) foreach split m{ // }, $line;
}

my $first = sub { $_[0]->parse('', 'SELECT 1')->bind('', '')->execute('') };
ok_ends($gate->session, '22012 an extended statement', sub { $_[0]->start_extended('SELECT 1/$1::int', 0) });
ok_ends(
	$gate->session,
	'22012 a pipeline',
	sub { $first->($_[0])->parse('', 'SELECT 1/$1::int')->bind('', '', 0)->execute('')->sync });
ok_ends($gate->session, 'a function call', sub { $_[0]->call_function($gate->value("SELECT 'counts'::regproc::oid")) });

# A transaction that begins without BEGIN waits at its first statement, also before a lock or
# triggers, and at a savepoint and not inside it.
for ((map { [ $_, 'SELECT 1' ] } 'COMMIT', 'ROLLBACK'),
	(map { [ 'COMMIT', $_ ] } 'SAVEPOINT a', 'LOCK t', 'SET CONSTRAINTS ALL IMMEDIATE'))
{
	my ($end, $sql) = @$_;
	my $session = $gate->session;
	$session->query('BEGIN; SELECT count(*) FROM t', "$end AND CHAIN");
	$gate->ok_quiet("after $end AND CHAIN");
	my $holder = $gate->holder;
	$gate->ok_queues($session, $sql, "$sql waits in the transaction begun by $end AND CHAIN");
	$holder->query('COMMIT');
	is($session->sqlstate, '00000', 'and has a slot in turn');
	is($gate->gauges, '1|0', 'until it ends');
	$session->query($end);
	$gate->ok_quiet("after the end of the chain");
}

# Cancel, terminate, time-outs, while waiting and while running
#
# Runs a session into the end that the function brings about, once while it
# waits and once while it runs.
sub ends_by
{
	my ($what, $sqlstate, $end, @session) = @_;

	my $worker = $gate->worker;
	my ($waiter, $runner) = map { $gate->session(@session) } 1 .. 2;
	my $next = $gate->session;
	# A time-out may be over before anybody looks.
	my $queued = $gate->counter('queued');
	$waiter->start('SELECT 1');
	$gate->await("SELECT queued > $queued FROM pg_stat_admission_gate", 'a wait');
	$next->start('SELECT 2');
	$end->($waiter);
	is($waiter->sqlstate, $sqlstate, "$what ends the wait");
	$gate->await_waiting(1);
	$worker->stop;
	is($next->finish, '2', 'and the queue goes on');
	$gate->ok_quiet("after $what of a waiting session");

	my $admitted = $gate->counter('admitted');
	$runner->start('SELECT pg_sleep(1000)');
	$gate->await("SELECT admitted > $admitted FROM pg_stat_admission_gate", 'a runner');
	$next->start('SELECT 3');
	$end->($runner);
	is($runner->sqlstate, $sqlstate, "$what ends a running statement");
	is($next->finish, '3', 'and lets the next one in');
	$gate->ok_quiet("after $what of a running session");
	return;
}

ends_by('pg_cancel_backend', '57014', sub { $gate->value('SELECT pg_cancel_backend(' . $_[0]->pid . ')') });
ends_by('pg_terminate_backend', '57P01', sub { $gate->value('SELECT pg_terminate_backend(' . $_[0]->pid . ')') });
ends_by('statement_timeout', '57014', sub { }, session => { statement_timeout => '1s' });

# The holder is idle in its transaction.
my %ends_holder = (
	pg_terminate_backend => sub { $gate->value('SELECT pg_terminate_backend(' . $_[0]->pid . ')') },
	idle_in_transaction_session_timeout => sub { $_[0]->query("SET idle_in_transaction_session_timeout = '100ms'") },
	'hanging up' => sub { $_[0]->hang_up },
	quitting => sub { $_[0]->quit });
for my $end (sort keys %ends_holder)
{
	my $holder = $gate->holder;
	my $next = $gate->waiter('SELECT 1');
	$ends_holder{$end}->($holder);
	is($next->finish, '1', "$end of an idle holder lets the next one in");
	$gate->ok_quiet("after $end");
}

# The client of a waiter goes away: the statement must not run for nobody.
{
	my $insert = 'INSERT INTO t VALUES (1000, 0)';
	my $holder = $gate->holder;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$gate->waiter($insert)->hang_up;
	$gate->await_waiting(0);
	is($gate->gauges, '1|0', 'a waiter leaves the queue when its client has hung up');
	is($gate->counter('ARRAY[cancels, stalls]'), '{1,0}', 'which is counted, and it was not let in for that');
	$holder->query('COMMIT');

	# Just before it enters: called, or after 20 ms granted a slot
	for my $ms (0, 20)
	{
		for my $sql ($insert, "BEGIN; $insert; COMMIT")
		{
			$holder->query('BEGIN');
			$gate->value('SELECT pg_stat_admission_gate_reset()');
			my $waiter = $gate->waiter($sql);
			$gate->await_wait($waiter, $ms);
			$waiter->hang_up;
			$holder->query('COMMIT');
			$gate->ok_quiet("after the client of a waiter hung up, waiting for $ms ms");
			is($gate->counter('ARRAY[cancels, completed]'), '{1,2}', "the waiter does not enter after $ms ms: $sql");
		}
	}
	is($gate->value('SELECT count(*) FROM t WHERE id = 1000'), '0', 'no statement ran for a client that was gone');

	# client_connection_check_interval looks more often.
	$holder->query('BEGIN');
	my @looks = (session => { client_connection_check_interval => '100ms' });
	my $waiter = $gate->waiter('SELECT 1', @looks);
	my $next = $gate->waiter('SELECT 2');
	$waiter->hang_up;
	$gate->await_waiting(1);
	is($gate->state($next), 'waiting',
		'client_connection_check_interval takes a waiter without a client out of the queue');
	$holder->query('COMMIT');
	is($next->finish, '2', 'and the queue goes on');
	$gate->ok_quiet('after client_connection_check_interval ended a wait');
}

# Suspended portals
for my $end ('COMMIT', 'ROLLBACK')
{
	my $session = $gate->session;
	my $start_portal =
	  sub { $session->parse('', 'SELECT id FROM t ORDER BY id')->bind($_[0], '')->execute($_[0], 5) };
	$session->query('BEGIN');
	is($start_portal->('p')->sync->result->{suspended}, 1, 'a row limit suspends a portal');
	is($gate->gauges, '1|0', 'its transaction keeps the slot');
	is($session->execute('p', 5)->sync->result->{rows}[4][0], '10', 'the portal goes on');
	$session->query($end);
	$gate->ok_quiet("after $end with a suspended portal");

	# Without a block, the transaction ends with the Sync.
	$start_portal->('')->flush->read_until('s');
	is($gate->gauges, '1|0', 'a suspended portal outside a block holds the slot');
	$session->sync->result;
	$gate->ok_quiet('after the Sync');

	$start_portal->('')->flush->read_until('s');
	$session->hang_up;
	$gate->ok_quiet('after a client hung up with a suspended portal');
}

# One that began with the bypass goes on without it, before its session has met the gate.
{
	my $session = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	$session->query('BEGIN');
	$session->parse('', 'SELECT id FROM t ORDER BY id')->bind('p', '')->execute('p', 5)->sync->result;
	$session->query('SET admission_gate.bypass = off');
	is($session->execute('p', 5)->sync->result->{rows}[4][0], '10', 'a portal goes on when the bypass has ended');
	is($gate->gauges, '1|0', 'with a slot');
	$session->query('COMMIT');
	$gate->ok_quiet('after it');
}

# Commands that commit inside
{
	my ($session, $next) = map { $gate->session } 1 .. 2;
	# What CREATE INDEX CONCURRENTLY waits for between its transactions
	my $writer = $gate->session(session => { 'admission_gate.bypass' => 'on' });

	for my $sql ('CALL commits()', 'DO $$ BEGIN CALL commits(); END $$', 'CREATE INDEX CONCURRENTLY t_v ON t (v)')
	{
		for my $end ('57014', '00000')
		{
			$writer->query('BEGIN; UPDATE t SET v = v WHERE id = 9; SELECT pg_advisory_xact_lock(1)');
			my $forced = $gate->counter('forced');
			$session->start($sql);
			$gate->await_wait_event_type($session, 'Lock');
			$gate->ok_queues($next, 'SELECT 1', "$sql keeps its slot between its transactions");
			is($gate->gauges, '1|1', 'the one and only');
			$end eq '00000' ? $writer->query('COMMIT') : $session->cancel;
			is($session->sqlstate, $end, "$sql ends");
			is($next->finish, '1', 'and lets the next one in');
			is($gate->counter('forced'), $forced, 'nobody was forced in');
			$gate->ok_quiet("after $sql");
			$writer->query('COMMIT', 'DROP INDEX IF EXISTS t_v') if $end ne '00000';
		}
	}

	ok_ends($session, $_)
	  foreach (
		'VACUUM',
		'ANALYZE',
		'REINDEX TABLE CONCURRENTLY t',
		'CLUSTER t USING t_pkey',
		'CLUSTER',
		'DROP INDEX CONCURRENTLY t_v',
		'CREATE DATABASE d',
		'DROP DATABASE d');
}

# A grant that meets a cancel, a termination or a time-out
#
# The waiter is hit at about the moment in which the holder lets it in.  The one
# behind it must be admitted in any case.  Each round has another pool, and none has more
# than three cancels: where four clients have given up lately, those that come last may go
# first.
$gate->set(pools => join '; ', map { "p$_" } 0 .. 30);
my $all_rounds = 0;

sub race
{
	my ($what, $rounds, $settings, $hit, @expected) = @_;

	my %seen;
	for (1 .. $rounds)
	{
		my %pool = ('admission_gate.pool' => 'p' . $all_rounds++ % 31);

		# The holder comes from the queue itself, because its slot may do so then.
		my $first = $gate->holder;
		my ($holder, $next) = map { $gate->session(session => \%pool) } 1 .. 2;
		my $waiter = $gate->session(session => { %pool, %$settings });
		$holder->start('BEGIN');
		$gate->await_waiting(1);
		my $timeouts = $gate->value('SELECT sum(timeouts) FROM pg_stat_admission_gate');
		$waiter->start('SELECT 1');
		$gate->await("SELECT sum(waiting) = 2 OR sum(timeouts) > $timeouts FROM pg_stat_admission_gate");
		$gate->queue($next, 'SELECT 2');
		$first->query('COMMIT');
		$holder->finish;
		$hit->($waiter, $holder);
		$holder->finish;
		$seen{ $waiter->sqlstate }++;
		eval { $next->finish } or return fail("$what: the session behind was not admitted") || diag $@, $gate->report;
	}
	note "$what: ", join ', ', map { "$_ $seen{$_} times" } sort keys %seen;
	delete @seen{@expected};
	is(join(',', keys %seen), '', "$what: the waiter runs or gets the error, and the session behind it is admitted");
	return $gate->ok_quiet("after races of a grant with $what");
}

# The waiter is stopped somewhere on its way from the signal to its end, and is
# granted a slot in the meantime, or a moment before the signal; called to take it, unless it
# has waited for 20 ms.
sub by_signal
{
	my ($signal, $within, $ms) = @_;

	return sub {
		my ($waiter, $holder) = @_;

		$gate->await_wait($waiter, $ms);
		my $is_granted_before = rand() < 0.3;
		$holder->start('COMMIT') if $is_granted_before;
		my $until = time + rand $within;
		kill $signal => $waiter->pid;
		while (time < $until) { }
		kill STOP => $waiter->pid;
		$holder->start('COMMIT') if !$is_granted_before;
		# Not for long: it may be that it holds the mutex of the pool just now.
		my $deadline = time + 1;
		usleep(1_000) until $holder->done || time > $deadline;
		kill CONT => $waiter->pid;
	};
}

for my $ms (0, 20)
{
	race("a cancel after $ms ms", 45, {}, by_signal('INT', 0.00005, $ms), '00000', '57014');
	race("a termination after $ms ms", 31, {}, by_signal('TERM', 0.0002, $ms), '00000', '57P01');
}
race(
	'queue_timeout', 40,
	{ 'admission_gate.queue_timeout' => '50ms' },
	sub { usleep(rand 60_000); $_[1]->start('COMMIT') },
	'00000', '53000');
$gate->set(pools => '');

# Refused BEGINs
#
# The transaction stays open and bound to fail: nothing that a client goes on to send is
# committed, whatever refused it, however it is sent.
$gate->value('TRUNCATE t', 'INSERT INTO t VALUES (1, 0), (2, 0)');

# What refuses a BEGIN: settings of the server and of the session, what to do once the
# session waits, and the SQLSTATE
my $cancel = sub { $gate->await_queued($_[0]); $_[0]->cancel };
my %refusals = (
	'queue_timeout' => { session => { 'admission_gate.queue_timeout' => '50ms' }, sqlstate => '53000' },
	'a full queue' => { server => { max_queue_length => 0 }, sqlstate => '53400' },
	'statement_timeout' => { session => { statement_timeout => '500ms' }, sqlstate => '57014' },
	'a cancel' => { act => $cancel, sqlstate => '57014' });

my ($one, $two) = map { "UPDATE t SET v = 1 WHERE id = $_" } 1, 2;

# What is sent, BEGIN first, and what is answered: the SQLSTATE or the tag, and the state of
# the transaction.  "refused" is the SQLSTATE of the refusal.
my @scripts = map { [ split / => / ] } split /\n/, <<"END";
BEGIN; $one; $two; ROLLBACK => BEGIN T, refused E, 25P02 E, ROLLBACK I
BEGIN; $one; $two; COMMIT => BEGIN T, refused E, 25P02 E, ROLLBACK I
BEGIN; SAVEPOINT a; $one; ROLLBACK TO a; $one; COMMIT => BEGIN T, refused E, 25P02 E, 3B001 E, 25P02 E, ROLLBACK I
BEGIN; $one; ROLLBACK AND CHAIN; SHOW work_mem; ROLLBACK => BEGIN T, refused E, ROLLBACK T, SHOW T, ROLLBACK I
BEGIN; COMMIT => BEGIN T, refused I
BEGIN; NOTIFY ch; SET LOCAL work_mem = 1000; COMMIT => BEGIN T, NOTIFY T, SET T, refused I
BEGIN; NOTIFY ch; PREPARE TRANSACTION 'p' => BEGIN T, NOTIFY T, refused I
BEGIN; NOTIFY ch; ROLLBACK => BEGIN T, NOTIFY T, ROLLBACK I
END
push @scripts, map {
	[
		"START TRANSACTION ISOLATION LEVEL $_; SHOW work_mem; SET LOCAL work_mem = 1000; SELECT sum(v) FROM t; COMMIT",
		'START TRANSACTION T, SHOW T, SET T, refused E, ROLLBACK I'
	]
} 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE';

# Sends the statements one by one, by that method; the first one is refused by that.
sub answers
{
	my ($session, $refusal, $start, @statements) = @_;

	return join ', ', map {
		$session->$start($_);
		$refusal->{act}->($session) if $refusal->{act} && $_ eq $statements[0];
		my $result = $session->result;
		my $end = $result->{error} ? $result->{error}{C} : $result->{tags}[-1] // '';
		($end eq ($refusal->{sqlstate} // '') ? 'refused' : $end) . " $result->{status}";
	} @statements;
}

sub ok_unchanged { return is($gate->value('SELECT sum(v) FROM t'), '0', "$_[0]: nothing is committed"); }

for my $what (sort keys %refusals)
{
	my $refusal = $refusals{$what};
	my $holder = $gate->holder;
	$gate->set(%{ $refusal->{server} }) if $refusal->{server};
	my $session = $gate->session(session => $refusal->{session} // {});

	for my $script (@scripts)
	{
		my ($statements, $expected) = @$script;
		for my $start ('start', 'start_extended')
		{
			is(answers($session, $refusal, $start, split /; /, $statements), $expected, "$what, $start: $statements");
			ok_unchanged("$what, $start");
		}
	}

	# All in one go, each with its Sync, and all with one
	for my $sync ('each', 'one')
	{
		my @pipeline = ('BEGIN', $one, $two, 'COMMIT');
		for my $i (0 .. $#pipeline)
		{
			$session->parse('', $pipeline[$i])->bind('', '')->execute('');
			$session->sync if $sync eq 'each' || $i == $#pipeline;
		}
		$refusal->{act}->($session) if $refusal->{act};
		my @results = map { $session->result } 1 .. ($sync eq 'each' ? 4 : 1);
		my ($error) = map { $_->{error}{C} } grep { $_->{error} } @results;
		is($error, $refusal->{sqlstate}, "$what, a pipeline with $sync Sync");
		$session->query('ROLLBACK');
		ok_unchanged("$what, a pipeline with $sync Sync");
	}

	# A function called without SQL, as libpq calls those of large objects
	is(answers($session, $refusal, 'start', 'BEGIN'), 'BEGIN T', "$what, a fast-path call: a block");
	$session->call_function($gate->value(q{SELECT 'txid_current()'::regprocedure::oid}))->result;
	is($session->start('COMMIT')->sqlstate, $refusal->{sqlstate}, "$what: its COMMIT fails");

	$gate->set(max_queue_length => -1) if $refusal->{server};
	$holder->query('COMMIT');
	$gate->ok_quiet("after $what");
	$session->query('SET statement_timeout = 0');
	is( answers($session, {}, 'start', 'BEGIN', 'UPDATE t SET v = v WHERE id = 1', 'COMMIT'),
		'BEGIN T, UPDATE 1 T, COMMIT I',
		"$what: the session works afterwards");
}

$gate->finish;
