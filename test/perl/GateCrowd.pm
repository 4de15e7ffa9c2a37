#
# A crowd of sessions that do mixed work at random, and can be disturbed.
#
# Each session runs scripts one after the other.  A script is a list of steps: SQL text with
# placeholders, or a function that sends something by itself and returns whether an answer
# will come; after any of them a number, for how many ms the client then does nothing, nor
# reads.
#
# GATE_SEED in the environment repeats a sequence of random numbers.
#
package GateCrowd;

use strict;
use warnings;

use GateTest;
use List::Util qw(max);

# What may be the end of a statement when everything goes well: hung up by ourselves, or the
# server has crashed or is not ready (08006, 08001, 57P01, 57P02, 57P03); from the scripts
# (22012, 23505); a block that is not there, or has failed (25P01, 25P02, 25001), a standby
# (25006), a cursor or savepoint that is gone (34000, 3B001); serialization failure, deadlock;
# tables and indexes that come and go (42...); refused by the gate (53000, 53400) or for too
# many connections; in use (55...); cancelled (57014); idle for too long in a transaction
# (25P03); not prepared, because that was cancelled (26000)
my %expected_sqlstate = map { $_ => 1 } qw(00000 08006 08001 57P01 57P02 57P03 22012 23505 25P01 25P02 25001 25006
  34000 3B001 40001 40P01 42P01 42P07 42704 42710 53000 53400 53300 55006 55000 55P03 57014 25P03 26000);

# For a server that has to stand such a crowd
our %settings = (
	max_prepared_transactions => 100,
	max_parallel_workers_per_gather => 2,
	shared_buffers => '64MB',
	max_wal_size => '1GB',
	autovacuum => 'on',
	autovacuum_naptime => 1,
	deadlock_timeout => '100ms',
	log_statement => 'none',
	log_line_prefix => '%m [%p] %b %e ');

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
sub _scripts
{
	my ($text) = @_;
	return map { [ split m{ // }, $_ ] } split /\n/, $text;
}

# What works on a standby, too.  Not on table u: PostgreSQL does not protect the
# planner there from an index that is dropped CONCURRENTLY on the primary.
my @read_scripts = (
	_scripts(<<'END'),
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
END
	[ sub { $_[0]->start_extended('SELECT v FROM t WHERE id = $1', 5) } ]);

# What it is all about
my $parallel = join '; ', map { "SET $_ = 0" } qw(min_parallel_table_scan_size parallel_setup_cost parallel_tuple_cost);
my @scripts = (
	@read_scripts,
	_scripts(<<'END'),
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

# A crowd of that size.  The seed of its random numbers is noted.
sub new
{
	my ($class, $gate, $size) = @_;

	my $seed = $ENV{GATE_SEED} || int(rand 1_000_000);
	srand $seed;
	note "seed: GATE_SEED=$seed";
	$gate->value(@setup);
	return $class->_gather($gate, $size, @scripts);
}

# A crowd that only reads, on a server that has the tables already.
sub readers { my ($class, $gate, $size) = @_; return $class->_gather($gate, $size, @read_scripts); }

sub _gather
{
	my ($class, $gate, $size, @its_scripts) = @_;

	return bless {
		gate => $gate,
		scripts => \@its_scripts,
		sessions => [ map { { steps => [] } } 1 .. $size ],
		ends => {},
		disturbances => { map { $_ => 0 } 'cancel', 'terminate', 'hang up' },
		stopping => 0
	}, $class;
}

sub gate { return $_[0]->{gate}; }

# Lets all sessions work for so many seconds, and calls the function about every
# 5 ms in between.
sub work
{
	my ($self, $seconds, $disturb) = @_;

	my $end = time + $seconds;
	while (time < $end)
	{
		$self->step;
		$disturb->();
		usleep(5_000);
	}
	return;
}

# Lets every session that is ready for it take its next step.
sub step
{
	my ($self) = @_;

	$self->_step($_) foreach @{ $self->{sessions} };
	$self->_end_forgotten_transactions;
	return;
}

# Cancels, terminates or hangs up sessions at random: one, or up to three at the
# same time: then slots are passed on to sessions that are about to leave.
sub disturb
{
	my ($self) = @_;

	my $how = (('cancel') x 5, 'terminate', 'hang up')[ rand 7 ];
	my %sessions = map { $_->pid => $_ } grep { $_ } map { $self->any_session } 1 .. 1 + rand 3;
	my %signal = (cancel => 'INT', terminate => 'TERM');
	$signal{$how} ? kill($signal{$how} => $_) : $sessions{$_}->hang_up foreach keys %sessions;
	$self->{disturbances}{$how} += keys %sessions;
	return;
}

# For how many seconds the session has been without an answer that is so for longest
sub longest_unanswered
{
	my ($self) = @_;

	my $now = time;
	return max(0, map { $now - $_->{asked} } grep { $_->{busy} } @{ $self->{sessions} });
}

# Lets all sessions finish what they are about and go.  Every one must be
# answered, or told a reason that may be.
sub ok_finishes
{
	my ($self) = @_;
	my $name = $self->{gate}->node->name;

	$self->{stopping} = 1;
	my @busy = @{ $self->{sessions} };
	$self->{gate}->await_true(
		sub {
			@busy = grep { $self->_step($_) } @busy;
			$self->_end_forgotten_transactions;
			return !@busy;
		},
		"the crowd of $name");
	is(scalar @busy, 0, "$name: every session was answered")
	  or diag $self->{gate}->value('SELECT pid, state, wait_event_type, wait_event, query FROM pg_stat_activity'),
	  $self->{gate}->report;
	foreach my $what ('disturbances', 'ends')
	{
		my $counts = $self->{$what};
		note "$name, $what: ", join ', ', map { "$_ $counts->{$_}" } sort keys %$counts;
	}
	my $texts = $self->{texts};
	is(join('; ', map { "$_: $texts->{$_}" } grep { !is_expected($_, $texts->{$_}) } sort keys %$texts),
		'', "$name: or was told a good reason");
	return;
}

# The server log must have no error but the expected.  log_line_prefix has to end with %e.
sub ok_log
{
	my ($self) = @_;
	my $node = $self->{gate}->node;

	my %unexpected;
	open my $log, '<', $node->logfile or die 'could not open ' . $node->logfile . ": $!";
	while (my $line = <$log>)
	{
		my ($sqlstate, $message) = $line =~ / ([0-9A-Z]{5}) ((?:ERROR|FATAL|PANIC): .*)/;
		$unexpected{"$sqlstate $message"}++ if $sqlstate && !is_expected($sqlstate, $message);
		# A child process is a program of COPY, which is cancelled with its backend.
		$unexpected{$line}++
		  if $line =~ /TRAP|(?<!child process )was terminated by signal (?!9:)|WARNING:.*(snapshot|leak|buffer)/;
	}
	close $log;
	return is(join("\n", sort keys %unexpected), '', $node->name . ': the server log has no error but the expected');
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
	# A standby connects while its primary is being killed.
	return 1 if $message =~ /could not receive database system identifier/;
	return $expected_sqlstate{$sqlstate};
}

# A connected session at random, often one that holds a slot or is the next to have one
sub any_session
{
	my ($self) = @_;

	my @sessions = grep { $_ && !$_->closed } map { $_->{session} } @{ $self->{sessions} };
	my $preferred =
	  ('false', "gate_state <> 'waiting'", "gate_state = 'waiting' ORDER BY wait_time DESC LIMIT 1")[ rand 3 ];
	# There may be no server just now.
	my $pids = eval { $self->{gate}->value("SELECT pid FROM pg_stat_admission_gate_backends WHERE $preferred") } // '';
	my %is_preferred = map { $_ => 1 } split /\n/, $pids;
	my @found = grep { $is_preferred{ $_->pid } } @sessions;
	@sessions = @found if @found;
	return $sessions[ rand @sessions ];
}

# Lets one session take its next step, if it is ready for it.  Returns false if
# it has done everything when the crowd is to stop.
sub _step
{
	my ($self, $one) = @_;

	return 1 if $one->{pause} && time < $one->{pause};
	$one->{pause} = 0;

	my $session = $one->{session};
	if (!$session)
	{
		return 0 if $self->{stopping};
		$session = GateClient->new($self->{gate}->node, may_fail => 1);
		if ($session->closed)
		{
			$self->_note_end($one, $session);
			$one->{pause} = time + 0.2;
			return 1;
		}
		$one->{session} = $session;
	}
	elsif ($one->{busy})
	{
		return 1 if !$session->done;
		$self->_note_end($one, $session);
		$one->{busy} = 0;
	}
	if ($session->closed)
	{
		$one->{session} = undef;
		$one->{steps} = [];
		return !$self->{stopping};
	}

	if (!@{ $one->{steps} })
	{
		if ($self->{stopping})
		{
			$session->quit;
			return 0;
		}
		# The first step sees to it that no block is left over.
		$one->{steps} = [ ($one->{in_block} ? 'ROLLBACK' : ()), @{ $self->{scripts}[ rand @{ $self->{scripts} } ] } ];
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
sub _note_end
{
	my ($self, $one, $session) = @_;

	my $result = $session->result;
	my $sqlstate = $session->sqlstate_of($result);
	$self->{ends}{$sqlstate}++;
	$self->{texts}{$sqlstate} = $result->{error}{M} if $result->{error};
	$one->{in_block} = ($result->{status} // 'I') ne 'I';
	return;
}

# Prepared transactions whose sessions were ended before they could finish them.
sub _end_forgotten_transactions
{
	my ($self) = @_;

	return if time < ($self->{next_look} // 0);
	$self->{next_look} = time + 0.5;
	eval { $self->{gate}->end_prepared_transactions(1) };    # there may be no server
	return;
}

1;
