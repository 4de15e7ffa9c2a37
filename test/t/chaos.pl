# Proves that nothing gets lost or stuck when everything happens at once.
# Hundreds of sessions of mixed work, while the limit and other settings change by reload,
# sessions are cancelled, terminated, hung up, stopped for seconds, and killed with crash
# restarts, and the server is restarted in immediate mode.  Meanwhile the gauges of the pools
# are those of the backends, and nobody waits without end.  Afterwards every session has been
# answered or told why, the gauges are zero, the totals add up, and the server log has no error
# but the expected.
#
# Each session runs scripts one after the other.  A script is a list of steps: SQL text with
# placeholders, or a function that sends something by itself and returns whether an answer
# will come; after any of them a number, for how many ms the client then does nothing, nor
# reads.
#
# GATE_CHAOS_SECONDS sets how long it lasts; two hours are a soak test.  GATE_SEED repeats a
# sequence of random numbers.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;
use List::Util  qw(max);
use Time::HiRes qw(alarm);

# What may be the end of a statement when everything goes well: hung up by ourselves, or the
# server has crashed or is not ready (08006, 08001, 57P01, 57P02, 57P03); from the scripts
# (22012, 23505); a block that is not there, or has failed (25P01, 25P02, 25001), a cursor or
# savepoint that is gone (34000, 3B001); serialization failure, deadlock; tables and indexes
# that come and go (42...); refused by the gate (53000, 53400) or for too many connections; in
# use (55...); cancelled (57014); idle for too long in a transaction (25P03); not prepared,
# because that was cancelled (26000)
my %expected_sqlstate = map { $_ => 1 } qw(00000 08006 08001 57P01 57P02 57P03 22012 23505 25P01 25P02 25001
  34000 3B001 40001 40P01 42P01 42P07 42704 42710 53000 53400 53300 55006 55000 55P03 57014 25P03 26000);

my @setup = (
	# VACUUM tries for 5 s to truncate a table, in vain while others wait to vacuum it.
	'CREATE TABLE t (id int PRIMARY KEY, v int) WITH (fillfactor = 50, vacuum_truncate = off)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i',
	'CREATE TABLE u AS SELECT * FROM t',
	'CREATE UNIQUE INDEX u_id ON u (id)',
	'CREATE TABLE log (a int)',
	'CREATE MATERIALIZED VIEW m AS SELECT * FROM t',
	'CREATE UNIQUE INDEX ON m (id)',
	'CREATE TABLE child (id int REFERENCES t DEFERRABLE INITIALLY DEFERRED)',
	'CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN
		FOR i IN 1..5 LOOP UPDATE t SET v = v + 1 WHERE id = i; COMMIT; END LOOP; END $$',
	'CREATE TABLE triggered (a int)',
	'CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE t SET v = v + 1 WHERE id = NEW.a; RETURN NEW; END $$',
	'CREATE TRIGGER tr BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION counts()',
	'CREATE RULE ru AS ON INSERT TO triggered DO ALSO SELECT count(*) FROM m',
	'CREATE FUNCTION catches() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
		UPDATE t SET v = v + 1 WHERE id = 7; RETURN 1/0;
		EXCEPTION WHEN division_by_zero THEN RETURN (SELECT count(*) FROM t); END $$');

# What REINDEX CONCURRENTLY leaves behind when it is interrupted; not what another
# session is just making
my $drop_leftovers = q{DO $$ DECLARE index regclass; BEGIN
	LOCK u IN SHARE UPDATE EXCLUSIVE MODE;
	FOR index IN SELECT indexrelid FROM pg_index WHERE indrelid = 'u'::regclass
		AND indexrelid::regclass::text ~ '_cc(new|old)'
	LOOP EXECUTE 'DROP INDEX ' || index; END LOOP; END $$};

# Scripts in text: one a line, its steps separated by //
sub scripts
{
	my ($text) = @_;
	return map { [ split m{ // }, $_ ] } split /\n/, $text;
}

# What it is all about
my $parallel = join '; ', map { "SET $_ = 0" } qw(min_parallel_table_scan_size parallel_setup_cost parallel_tuple_cost);
my @scripts = (
	scripts(<<'END'),
SELECT 1
SELECT count(*) FROM t
SELECT 1/0
SELECT pg_sleep(0.1)
EXPLAIN ANALYZE SELECT count(*) FROM t
COPY t TO STDOUT
INSERT INTO log VALUES (1)
SELECT count(*) FROM t JOIN m USING (id)
BEGIN // SELECT count(*) FROM t // 100 // SELECT 1 // COMMIT
BEGIN ISOLATION LEVEL REPEATABLE READ // SELECT sum(v) FROM t // 50 // SELECT sum(v) FROM t // COMMIT
SET default_transaction_isolation = "repeatable read" // SELECT sum(v) FROM t // RESET default_transaction_isolation
BEGIN // SAVEPOINT a // SELECT 1/0 // ROLLBACK TO a // SELECT 1 // COMMIT
BEGIN // DECLARE c CURSOR FOR SELECT * FROM t // FETCH 10 FROM c // 100 // FETCH 10 FROM c // COMMIT
SELECT pg_advisory_lock(:few) // SELECT count(*) FROM t // SELECT pg_advisory_unlock_all()
SET admission_gate.bypass = on // BEGIN // RESET admission_gate.bypass // SELECT 1 // 50 // SELECT 2 // COMMIT // RESET admission_gate.bypass
SET admission_gate.queue_timeout = 20 // SELECT count(*) FROM t // RESET admission_gate.queue_timeout
SELECT * FROM pg_stat_admission_gate // SELECT * FROM pg_stat_admission_gate_backends
SELECT * FROM pg_stat_admission_gate_histogram // SELECT * FROM pg_stat_admission_gate_hot_spots
SET client_connection_check_interval = 50 // SELECT pg_sleep(1) // RESET client_connection_check_interval
SELECT repeat('x', 1000) FROM generate_series(1, 3000) // 300
UPDATE t SET v = v + 1 WHERE id = 1
UPDATE t SET v = v + 1 WHERE id = :id
UPDATE t SET v = v + 1 WHERE id = :id RETURNING v
INSERT INTO log SELECT generate_series(1, 100)
BEGIN // UPDATE t SET v = v + 1 WHERE id = :few // UPDATE t SET v = v + 1 WHERE id = :few // COMMIT
BEGIN // UPDATE t SET v = v + 1 WHERE id = :few // 50 // ROLLBACK
BEGIN // UPDATE t SET v = v + 1 WHERE id = :few // 3000 // COMMIT
BEGIN // SELECT count(*) FROM t // 200 // COMMIT AND CHAIN // SELECT 1 // COMMIT
BEGIN ISOLATION LEVEL SERIALIZABLE // SELECT sum(v) FROM t // UPDATE t SET v = v + 1 WHERE id = :few // COMMIT
BEGIN ISOLATION LEVEL REPEATABLE READ // SELECT sum(v) FROM t // UPDATE t SET v = v + 1 WHERE id = :few // COMMIT
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE // SELECT sum(v) FROM t // COMMIT
BEGIN // SAVEPOINT a // SELECT 1/0 // ROLLBACK TO a // UPDATE t SET v = v + 1 WHERE id = :id // COMMIT
CALL commits()
SELECT catches()
SELECT pg_sleep(0.3)
SELECT pg_sleep(3)
BEGIN // INSERT INTO child VALUES (:few) // COMMIT
VACUUM (FREEZE) t
ANALYZE t
VACUUM FULL u
CLUSTER u USING u_id
INSERT INTO triggered VALUES (:few)
TRUNCATE log, triggered
SELECT count(*) FROM ts_stat('SELECT to_tsvector(v::text) FROM t WHERE id < 50')
CREATE INDEX CONCURRENTLY IF NOT EXISTS u_v ON u (v)
DROP INDEX CONCURRENTLY IF EXISTS u_v
REFRESH MATERIALIZED VIEW CONCURRENTLY m
ALTER TABLE u SET (fillfactor = 80)
BEGIN // LOCK u // 20 // COMMIT
BEGIN // LOCK u NOWAIT // UPDATE u SET v = v + 1 WHERE id = :few // 500 // ROLLBACK
SET lock_timeout = 30 // LOCK u // UPDATE t SET v = v + 1 WHERE id = 1 // RESET ALL
SET idle_in_transaction_session_timeout = 500 // BEGIN // UPDATE t SET v = v + 1 WHERE id = :few // 1500 // RESET ALL
CREATE TEMP TABLE IF NOT EXISTS x AS SELECT * FROM u // SELECT count(*) FROM x // DROP TABLE IF EXISTS x
BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t; COMMIT // FETCH 10 FROM h // CLOSE h
LISTEN x // NOTIFY x // 100 // UNLISTEN x
SELECT pg_advisory_lock(:few) // UPDATE t SET v = v + 1 WHERE id = :few // SELECT pg_advisory_unlock_all()
SET admission_gate.pool = a // UPDATE t SET v = v + 1 WHERE id = :few // BEGIN // SELECT count(*) FROM t // COMMIT
SET admission_gate.pool = b // SELECT pg_sleep(0.01) // UPDATE t SET v = v + 1 WHERE id = 1 // SELECT pg_sleep(0.3)
SET admission_gate.pool = c // BEGIN // UPDATE t SET v = v + 1 WHERE id = :few // 50 // ROLLBACK
SET admission_gate.pool = p:few // SELECT pg_sleep(0.01) // UPDATE t SET v = v + 1 WHERE id = :few
RESET admission_gate.pool
SELECT pg_stat_admission_gate_reset()
SET statement_timeout = 50 // SELECT pg_sleep(0.04) // RESET statement_timeout
SET jit_above_cost = 0 // SELECT sum(v + 1) FROM t // RESET jit_above_cost
BEGIN; UPDATE t SET v = v + 1 WHERE id = 9; PREPARE TRANSACTION 'g:pid' // COMMIT PREPARED 'g:pid'
BEGIN; UPDATE t SET v = v + 1 WHERE id = 9; PREPARE TRANSACTION 'g:pid' // 300 // ROLLBACK PREPARED 'g:pid'
BEGIN; UPDATE t SET v = v + 1 WHERE id = 9; PREPARE TRANSACTION 'f:pid'
COPY (SELECT repeat('x', 1000) FROM generate_series(1, 3000)) TO STDOUT // 300
END
	[ 'REINDEX INDEX CONCURRENTLY u_id', $drop_leftovers ],
	[ $parallel, 'BEGIN', 'SELECT sum(v) FROM t', 50, 'COMMIT', 'RESET ALL' ],
	[
		sub { $_[0]->start('COPY log FROM STDIN')->copy_data("1\n"); 0 },
		200, sub { $_[0]->copy_data("2\n")->copy_done }
	],
	[ sub { $_[0]->start_extended('SELECT v FROM t WHERE id = $1', 5) } ],
	[ sub { $_[0]->start_extended('UPDATE t SET v = v + 1 WHERE id = $1', 5) } ],
	[
		sub {
			$_[0]->parse('', 'UPDATE t SET v = v + 1 WHERE id = $1')->bind('', '', $_)->execute('') foreach (3 .. 5);
			$_[0]->sync;
		}
	],
	[
		'BEGIN', sub { $_[0]->parse('', 'SELECT id FROM t')->bind('p', '')->execute('p', 3)->sync },
		50, sub { $_[0]->execute('p', 3)->sync }, 'COMMIT'
	],
	[
		"SET plan_cache_mode = force_generic_plan",
		sub {
			$_[0]->parse('', 'DEALLOCATE ALL')->bind('', '')->execute('')
			  ->parse('s', 'UPDATE t SET v = v + 1 WHERE id = $1 RETURNING v')->sync;
		},
		sub { $_[0]->start_prepared('s', 6) },
		sub { $_[0]->start_prepared('s', 8) },
	]);

my $gate = GateTest->new(
	'chaos',
	max_active_backends => 5,
	max_prepared_transactions => 100,
	max_parallel_workers_per_gather => 2,
	shared_buffers => '64MB',
	max_wal_size => '1GB',
	autovacuum => 'on',
	autovacuum_naptime => 1,
	deadlock_timeout => '100ms',
	log_statement => 'none',
	log_line_prefix => '%m [%p] %b %e ',
	max_connections => 500);
$gate->value(@setup);

# The crowd; by SQLSTATE, how often a statement ended so and what was said; and whether all are
# to finish
my @crowd = map { { steps => [] } } 1 .. 200;
my (%ends, %texts, $is_stopping);

# Lets every session that is ready for it take its next step.  Returns those that go on.
sub step
{
	my @busy = grep { step_one($_) } @_;
	end_forgotten_transactions();
	return @busy;
}

# Cancels, terminates or hangs up sessions at random: one, or up to three at the
# same time: then slots are passed on to sessions that are about to leave.
sub disturb
{
	my $how = (('cancel') x 5, 'terminate', 'hang up')[ rand 7 ];
	my %sessions = map { $_->pid => $_ } grep { $_ } map { any_session() } 1 .. 1 + rand 3;
	my %signal = (cancel => 'INT', terminate => 'TERM');
	$signal{$how} ? kill($signal{$how} => $_) : $sessions{$_}->hang_up foreach keys %sessions;
	return;
}

# For how many seconds the session has been without an answer that is so for longest
sub longest_unanswered
{
	my $now = time;
	return max(0, map { $now - $_->{asked} } grep { $_->{busy} } @crowd);
}

# Lets all sessions finish what they are about and go.  Every one must be
# answered, or told a reason that may be.
sub ok_finishes
{
	$is_stopping = 1;
	my @busy = @crowd;
	ok($gate->await_true(sub { !(@busy = step(@busy)) }, 'the crowd'), 'every session was answered')
	  or diag $gate->value('SELECT pid, state, wait_event_type, wait_event, query FROM pg_stat_activity'),
	  $gate->report;
	note join ', ', map { "$_ $ends{$_}" } sort keys %ends;
	is(join('; ', map { "$_: $texts{$_}" } grep { !is_expected($_, $texts{$_}) } sort keys %texts),
		'', 'or was told a good reason');
	return;
}

# The server log must have no error but the expected.
sub ok_log
{
	my %unexpected;
	open my $log, '<', $gate->node->logfile or die "could not open the server log: $!";
	while (my $line = <$log>)
	{
		my ($sqlstate, $message) = $line =~ / ([0-9A-Z]{5}) ((?:ERROR|FATAL|PANIC): .*)/;
		$unexpected{"$sqlstate $message"}++ if $sqlstate && !is_expected($sqlstate, $message);
		# A child process is a program of COPY, which is cancelled with its backend.
		$unexpected{$line}++
		  if $line =~ /TRAP|(?<!child process )was terminated by signal (?!9:)|WARNING:.*(snapshot|leak|buffer)/;
	}
	close $log;
	return is(join("\n", sort keys %unexpected), '', 'the server log has no error but the expected');
}

sub is_expected
{
	my ($sqlstate, $message) = @_;

	# A race in PostgreSQL itself, 15 at least: between an abort's entry in clog
	# and its leaving the ProcArray, DoesMultiXactIdConflict takes an updater among
	# several lockers of a row for aborted, MultiXactIdExpand for running.
	return 1 if $message =~ /new multixact has more than one updating member/;
	# Another, 15 at least: CREATE INDEX CONCURRENTLY unlocks the table before the
	# transaction is committed that has updated the entry in pg_index, so that DROP
	# INDEX CONCURRENTLY may come in between.
	return 1 if $message =~ /tuple concurrently updated/;
	# What ends a session whose client hung up within COPY FROM STDIN
	return 1 if $message =~ /protocol synchronization was lost/;
	return $expected_sqlstate{$sqlstate};
}

# A connected session at random, often one that holds a slot or is the next to have one
sub any_session
{
	my @sessions = grep { $_ && !$_->closed } map { $_->{session} } @crowd;
	my $preferred =
	  ('false', "gate_state <> 'waiting'", "gate_state = 'waiting' ORDER BY wait_time DESC LIMIT 1")[ rand 3 ];
	# There may be no server just now.
	my $pids = eval { $gate->value("SELECT pid FROM pg_stat_admission_gate_backends WHERE $preferred") } // '';
	my %is_preferred = map { $_ => 1 } split /\n/, $pids;
	my @found = grep { $is_preferred{ $_->pid } } @sessions;
	@sessions = @found if @found;
	return $sessions[ rand @sessions ];
}

# Lets one session take its next step, if it is ready for it.  Returns false if
# it has done everything when the crowd is to stop.
sub step_one
{
	my ($one) = @_;

	return 1 if $one->{pause} && time < $one->{pause};
	$one->{pause} = 0;

	my $session = $one->{session};
	if (!$session)
	{
		return 0 if $is_stopping;
		$session = $gate->session(may_fail => 1);
		if ($session->closed)
		{
			note_end($one, $session);
			$one->{pause} = time + 0.2;
			return 1;
		}
		$one->{session} = $session;
	}
	elsif ($one->{busy})
	{
		return 1 if !$session->done;
		note_end($one, $session);
		$one->{busy} = 0;
	}
	if ($session->closed)
	{
		$one->{session} = undef;
		$one->{steps} = [];
		return !$is_stopping;
	}

	if (!@{ $one->{steps} })
	{
		if ($is_stopping)
		{
			$session->quit;
			return 0;
		}
		# The first step sees to it that no block is left over.
		$one->{steps} = [ ($one->{in_block} ? 'ROLLBACK' : ()), @{ $scripts[ rand @scripts ] } ];
	}

	my $step = shift @{ $one->{steps} };
	my %value = (id => 1 + int rand 1000, few => 1 + int rand 10, pid => $session->pid);
	$step =~ s/:(id|few|pid)\b/$value{$1}/g if !ref $step;
	$one->{asked} = time;
	$one->{busy} = ref $step ? $step->($session) : $session->start($step);
	$one->{pause} = time + (shift @{ $one->{steps} }) / 1000 if ($one->{steps}[0] // '') =~ /^\d+$/;
	return 1;
}

# Takes the answer of a session, or what it was told at its end.
sub note_end
{
	my ($one, $session) = @_;

	my $result = $session->result;
	my $sqlstate = $session->sqlstate_of($result);
	$ends{$sqlstate}++;
	$texts{$sqlstate} = $result->{error}{M} if $result->{error};
	$one->{in_block} = ($result->{status} // 'I') ne 'I';
	return;
}

# Prepared transactions whose sessions were ended before they could finish them.
my $next_look = 0;

sub end_forgotten_transactions
{
	return if time < $next_look;
	$next_look = time + 0.5;
	eval { $gate->end_prepared_transactions(1) };    # there may be no server
	return;
}

# The chaos
my $seconds = $ENV{GATE_CHAOS_SECONDS} || 30;
my $seed = $ENV{GATE_SEED} || int(rand 1_000_000);
srand $seed;
note "seed: GATE_SEED=$seed";

# For how many seconds a session may be without an answer.  Where all holders wait for
# somebody in the queue, one more is let in after 1, 2, 4 ... 60 s: four times that, and what
# the statement itself waits for.
my $longest_wait = 300;

sub one_of { return $_[ rand @_ ]; }

# When each happens next, and how many times each has
my %next = (
	reload => 0,
	crash => time + 5,
	restart => time + 13,
	pgbench => 0);
my %times;

# A restart makes all slots anew.  To see what leaks, there is none near the end.
my $last_restart = time + 0.6 * $seconds;
@next{ 'stop', 'look' } = ($last_restart + 5, $last_restart + 6);

# Is it time for this again?
sub due
{
	my ($what, $interval) = @_;

	return 0 if time < $next{$what};
	$next{$what} = time + $interval;
	$times{$what}++;
	return 1;
}

sub change_settings
{
	# The server may just be restarting.
	eval {
		$gate->set_soon(
			max_active_backends => one_of(-1, 1 + int rand 50, 1 + int rand 50),
			hot_spots => one_of('on', 'on', 'off'),
			mode => one_of('enforce', 'enforce', 'enforce', 'observe'),
			log_min_wait => one_of(-1, 0, 100),
			idle_after => one_of(0, 10, 100, 1000, -1),
			pools => one_of(
				'',
				'a: max_active = 2, priority = 5; b: max_active = 1',
				'a; c: priority = -5',
				'b: max_active = 3; default: max_active = 5',
				join('; ', map { "p$_: max_active = 1" } 1 .. 31)),
			bypass_application_names => one_of('', '', 'pgbench'),
			max_queue_length => one_of(-1, -1, -1, 0, 20, 200));
		1;
	} or undef $gate->{observer};
	return;
}

# Stopped processes, and until when.  They go on when it is time, even if the test is stuck
# then.
my %stopped;
local $SIG{ALRM} = sub { continue_due(time) };
alarm 1, 1;
END { kill CONT => keys %stopped; }

sub continue_due
{
	my ($when) = @_;
	my @due = grep { $stopped{$_} < $when } keys %stopped;
	kill CONT => @due;
	delete @stopped{@due};
	return;
}

# Stops processes that sleep, and so hold no lock that others could not go on without: a few
# of any, all that wait at the gate, all that have a slot, or the one that tells the others of
# new settings.
my @some = (
	[ q{backend_type = 'client backend'}, 3 ],
	[ q{gate_state = 'waiting'}, 1000 ],
	[ q{gate_state <> 'waiting'}, 1000 ],
	[ q{backend_type = 'checkpointer'}, 1 ]);

sub stop_some
{
	my ($which, $most) = @{ one_of(@some) };
	my $sleepers = "SELECT pid FROM pg_stat_activity LEFT JOIN pg_stat_admission_gate_backends USING (pid)
		WHERE pid <> pg_backend_pid() AND wait_event <> 'SpinDelay'
		AND wait_event_type IN ('Activity', 'Client', 'Extension', 'IPC', 'Lock', 'Timeout') AND";
	my @pids = split /\n/, $gate->value("$sleepers $which ORDER BY random() LIMIT $most");
	return if !@pids;
	kill STOP => @pids;
	@stopped{@pids} = (time + 8 * rand() * rand() * rand()) x @pids;

	# Those that have woken up meanwhile go on.
	my %sleeps = map { $_ => 1 } split /\n/, $gate->value("$sleepers pid IN (" . join(',', @pids) . ')');
	my @awake = grep { !$sleeps{$_} } @pids;
	kill CONT => @awake;
	delete @stopped{@awake};
	return;
}

# Statement after statement, faster than the crowd; if the clients are ended, others come.
my $pgbench;
my $script =
  $gate->script("\\set id random(1, 20)\nUPDATE t SET v = v + 1 WHERE id = :id;\nSELECT v FROM t WHERE id = :id;\n");

sub keep_pgbench_going
{
	return if ($pgbench && $pgbench->pumpable) || !due('pgbench', 1);
	$pgbench->finish if $pgbench;
	$pgbench = IPC::Run::start($gate->pgbench('-c', 12, '-T', one_of(1, 5, 20), '-f', $script), '>&', '/dev/null');
	return;
}

# The crowd goes on until all is in order at some moment: the views are not read in one.
my $in_order = q{SELECT count(*) = 0
	FROM (SELECT pool, running, waiting FROM pg_stat_admission_gate) g
	FULL JOIN (SELECT pool, count(*) FILTER (WHERE gate_state = 'running') AS running,
			count(*) FILTER (WHERE gate_state = 'waiting') AS waiting
		FROM pg_stat_admission_gate_backends GROUP BY pool) b USING (pool)
	WHERE (coalesce(g.running, 0), coalesce(g.waiting, 0))
		IS DISTINCT FROM (coalesce(b.running, 0), coalesce(b.waiting, 0))};

sub ok_in_order
{
	continue_due('inf');
	ok($gate->await_true(sub { step(@crowd); $gate->value($in_order) eq 't' }, 'such a moment'),
		'the gauges of the pools are those of the backends');
	$gate->ok_adds_up('in the chaos');
	return cmp_ok(longest_unanswered(), '<', $longest_wait, 'and no session waits without end');
}

for (my $end = time + $seconds; time < $end; usleep(5_000))
{
	step(@crowd);
	change_settings() if due('reload', 1);
	keep_pgbench_going();
	if (time < $last_restart)
	{
		kill KILL => map { $_->pid } grep { $_ } any_session() if due('crash', 9);
		$gate->restart('immediate') if due('restart', 20);
	}
	else
	{
		stop_some() if due('stop', rand 3);
		ok_in_order() if due('look', 8);
	}
	disturb() if rand() < 0.5;
}
alarm 0;
continue_due('inf');
$pgbench->kill_kill if $pgbench;
note 'what happened: ', join ', ', map { "$_ $times{$_}" } sort keys %times;

ok($gate->await_restart, 'the server is there after the chaos');
$gate->set(pools => '');
$gate->set(
	max_active_backends => 4,
	idle_after => 100,
	mode => 'enforce',
	max_queue_length => -1);
ok_finishes();
# One whose client has left may wait for a prepared transaction, or prepare one.
my $others = "SELECT count(*) > 1 FROM pg_stat_activity WHERE backend_type = 'client backend'";
$gate->await(sub { $gate->end_prepared_transactions; $gate->value($others) eq 'f' }, 'all sessions to be gone');
note $gate->report;
$gate->ok_quiet('after the chaos');
$gate->ok_one_slot;
$gate->node->stop;
ok_log();
done_testing();
