#
# A crowd of sessions that do mixed work at random, and can be disturbed.
#
# Each session runs scripts one after the other.  A script is a list of steps:
# SQL text with placeholders, or a function that sends something by itself, or
# a number, a pause in ms in which the client does nothing, nor reads.
#
package GateCrowd;

use strict;
use warnings;

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# What may be the end of a statement when everything goes well.
my %expected_sqlstate = map { $_ => 1 } (
	'00000',
	'08006',    # hung up by ourselves, or the server has crashed
	'22012',    # division by zero: from the scripts
	'23505',    # unique violation: likewise
	'25P01', '25P02',    # there is no block, or it has failed
	'25001',    # there is a block
	'34000',    # its cursor or portal is gone with it
	'3B001',    # its savepoint
	'40001',    # serialization failure
	'40P01',    # deadlock
	'42P01', '42P07', '42704', '42710',    # tables and indexes come and go
	'53000', '53400',    # refused by the gate
	'53300',    # too many connections
	'55006', '55000', '55P03',    # in use, not in that state, lock not available
	'57014',    # cancelled
	'57P01', '57P02', '57P03',    # terminated, crashed, not ready
);

# Schema for the scripts
my @setup = (
	'CREATE TABLE t (id int PRIMARY KEY, v int) WITH (fillfactor = 50)',
	'INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i',
	'CREATE TABLE u AS SELECT * FROM t',
	'CREATE UNIQUE INDEX u_id ON u (id)',
	'CREATE TABLE log (a int)',
	'CREATE MATERIALIZED VIEW m AS SELECT * FROM t',
	'CREATE UNIQUE INDEX ON m (id)',
	'CREATE TABLE child (id int REFERENCES t DEFERRABLE INITIALLY DEFERRED)',
	'CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN
		FOR i IN 1..5 LOOP UPDATE t SET v = v + 1 WHERE id = i; COMMIT; END LOOP; END $$',
	'CREATE FUNCTION catches() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
		UPDATE t SET v = v + 1 WHERE id = 7; RETURN 1/0;
		EXCEPTION WHEN division_by_zero THEN RETURN (SELECT count(*) FROM t); END $$');

# What REINDEX CONCURRENTLY leaves behind when it is interrupted
my $drop_leftovers = q{DO $$ DECLARE index regclass; BEGIN
	FOR index IN SELECT indexrelid FROM pg_index WHERE indrelid = 'u'::regclass
		AND indexrelid::regclass::text ~ '_cc(new|old)'
	LOOP EXECUTE 'DROP INDEX ' || index; END LOOP; END $$};

my @scripts = (
	['SELECT 1'],
	['SELECT count(*) FROM t'],
	['SELECT 1/0'],
	['UPDATE t SET v = v + 1 WHERE id = 1'],
	['UPDATE t SET v = v + 1 WHERE id = :id'],
	['UPDATE t SET v = v + 1 WHERE id = :id RETURNING v'],
	['INSERT INTO log SELECT generate_series(1, 100)'],
	[ 'BEGIN', 'UPDATE t SET v = v + 1 WHERE id = :few', 'UPDATE t SET v = v + 1 WHERE id = :few', 'COMMIT' ],
	[ 'BEGIN', 'UPDATE t SET v = v + 1 WHERE id = :few', 50, 'ROLLBACK' ],
	[ 'BEGIN', 'SELECT count(*) FROM t', 200, 'COMMIT AND CHAIN', 'SELECT 1', 'COMMIT' ],
	[ 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT sum(v) FROM t WHERE id < 20', 'UPDATE t SET v = v + 1 WHERE id = :few', 'COMMIT' ],
	[ 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT sum(v) FROM t', 'UPDATE t SET v = v + 1 WHERE id = :few', 'COMMIT' ],
	[ 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE', 'SELECT sum(v) FROM t', 'COMMIT' ],
	[ 'SET default_transaction_isolation = serializable', 'UPDATE t SET v = v + 1 WHERE id = :few', 'RESET default_transaction_isolation' ],
	[ 'BEGIN', 'SAVEPOINT a', 'SELECT 1/0', 'ROLLBACK TO a', 'UPDATE t SET v = v + 1 WHERE id = :id', 'COMMIT' ],
	['CALL commits()'],
	['SELECT catches()'],
	['SELECT pg_sleep(0.01)'],
	['SELECT pg_sleep(0.3)'],
	[ 'BEGIN', 'INSERT INTO child VALUES (:few)', 'COMMIT' ],
	['VACUUM t'],
	['VACUUM (FREEZE) t'],
	['ANALYZE t'],
	['VACUUM FULL u'],
	[ 'REINDEX INDEX CONCURRENTLY u_id', $drop_leftovers ],
	['CREATE INDEX CONCURRENTLY IF NOT EXISTS u_v ON u (v)'],
	['DROP INDEX CONCURRENTLY IF EXISTS u_v'],
	['REFRESH MATERIALIZED VIEW CONCURRENTLY m'],
	['ALTER TABLE u SET (fillfactor = 80)'],
	[ 'BEGIN', 'LOCK u', 20, 'COMMIT' ],
	['SELECT count(*) FROM u JOIN m USING (id)'],
	[ 'CREATE TEMP TABLE IF NOT EXISTS x AS SELECT * FROM u', 'SELECT count(*) FROM x', 'DROP TABLE IF EXISTS x' ],
	['EXPLAIN ANALYZE SELECT count(*) FROM t'],
	['EXPLAIN SELECT count(*) FROM t'],
	[ 'BEGIN', 'DECLARE c CURSOR FOR SELECT * FROM t', 'FETCH 10 FROM c', 100, 'FETCH 10 FROM c', 'COMMIT' ],
	[ 'BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT * FROM t; COMMIT', 'FETCH 10 FROM h', 'CLOSE h' ],
	[ 'LISTEN x', 'NOTIFY x' ],
	[ 'SELECT pg_advisory_lock(:few)', 'UPDATE t SET v = v + 1 WHERE id = :few', 'SELECT pg_advisory_unlock_all()' ],
	[ 'SET admission_gate.scope = statement', 'BEGIN', 'UPDATE t SET v = v + 1 WHERE id = :few', 'SELECT 1', 'UPDATE t SET v = v + 1 WHERE id = :few', 'COMMIT', 'RESET admission_gate.scope' ],
	[ 'SET admission_gate.queue_timeout = 20', 'SELECT count(*) FROM t', 'RESET admission_gate.queue_timeout' ],
	[ 'SET statement_timeout = 50', 'SELECT pg_sleep(0.04)', 'RESET statement_timeout' ],
	[ 'SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0', 'SELECT sum(v) FROM t', 'RESET ALL' ],
	['COPY t TO STDOUT'],
	[ sub { $_[0]->start('COPY log FROM STDIN')->copy_data("1\n")->copy_data("2\n")->copy_done } ],
	[ sub { $_[0]->start("SELECT repeat('x', 1000) FROM generate_series(1, 3000)") }, 300 ],
	[ sub { $_[0]->start_extended('SELECT v FROM t WHERE id = $1', 5) } ],
	[ sub { $_[0]->start_extended('UPDATE t SET v = v + 1 WHERE id = $1', 5) } ],
	[
		sub {
			$_[0]->parse('', 'UPDATE t SET v = v + 1 WHERE id = $1')->bind('', '', $_)->execute('') foreach (3 .. 5);
			$_[0]->sync;
		}
	],
	[
		'BEGIN',
		sub { $_[0]->parse('', 'SELECT id FROM t')->bind('p', '')->execute('p', 3)->sync },
		50,
		sub { $_[0]->execute('p', 3)->sync },
		'COMMIT'
	],
	[
		"SET plan_cache_mode = force_generic_plan",
		sub { $_[0]->parse('', 'DEALLOCATE ALL')->bind('', '')->execute('')->parse('s', 'UPDATE t SET v = v + 1 WHERE id = $1 RETURNING v')->sync },
		sub { $_[0]->start_prepared('s', 6) },
		sub { $_[0]->start_prepared('s', 8) },
	],
	[ "BEGIN; UPDATE t SET v = v + 1 WHERE id = 9; PREPARE TRANSACTION 'g:pid'", "COMMIT PREPARED 'g:pid'" ],
	[ "BEGIN; UPDATE t SET v = v + 1 WHERE id = 9; PREPARE TRANSACTION 'g:pid'", 300, "ROLLBACK PREPARED 'g:pid'" ],
);

# The random numbers can be had again by the seed, which is noted.
sub new
{
	my ($class, $gate, $size) = @_;

	my $seed = $ENV{GATE_SEED} || int(rand 1_000_000);
	srand $seed;
	note "seed: GATE_SEED=$seed";
	$gate->value($_) foreach @setup;
	my $self = bless {
		gate => $gate,
		sessions => [ map { { steps => [] } } 1 .. $size ],
		ends => {},
		stopping => 0
	}, $class;
	return $self;
}

# Lets all sessions work for so many seconds, and calls the function about every
# 5 ms in between.
sub work
{
	my ($self, $seconds, $disturb) = @_;

	my $end = time + $seconds;
	while (time < $end)
	{
		$self->_step($_) foreach @{ $self->{sessions} };
		$self->_end_forgotten_transactions;
		$disturb->();
		usleep(5_000);
	}
	return;
}

# Lets all sessions finish what they are about and go.  Returns how many are
# stuck.
sub finish
{
	my ($self) = @_;

	$self->{stopping} = 1;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my @busy = @{ $self->{sessions} };
	while (@busy && time < $deadline)
	{
		@busy = grep { $self->_step($_) } @busy;
		$self->_end_forgotten_transactions;
		usleep(5_000);
	}
	if (@busy)
	{
		my $pids = join ',', map { $_->{session}->pid } @busy;
		diag "stuck:\n", $self->{gate}->value(
			"SELECT count(*), state, wait_event_type, wait_event, max(left(query, 60)) FROM pg_stat_activity
			WHERE pid IN ($pids) GROUP BY 2, 3, 4");
		diag 'pool: ', $self->{gate}->value('SELECT row_to_json(s) FROM pg_stat_admission_gate s');
	}
	return scalar @busy;
}

# What the statements ended with: SQLSTATE and how often
sub ends { return $_[0]->{ends}; }

# SQLSTATEs that should not have been seen
sub unexpected_ends
{
	my ($self) = @_;
	return map { "$_: " . ($self->{texts}{$_} // '') }
	  grep { !is_expected($_, $self->{texts}{$_} // '') } sort keys %{ $self->{ends} };
}

# Whether an error is one of those that may happen
sub is_expected
{
	my ($sqlstate, $message) = @_;

	# A race in PostgreSQL itself, 15 at least: between an abort's entry in clog
	# and its leaving the ProcArray, DoesMultiXactIdConflict takes an updater among
	# several lockers of a row for aborted, MultiXactIdExpand for running.
	return 1 if $message =~ /new multixact has more than one updating member/;
	return $expected_sqlstate{$sqlstate};
}

# A connected session at random, half of the time one that holds a slot
sub any_session
{
	my ($self) = @_;

	my @sessions = grep { $_ && !$_->closed } map { $_->{session} } @{ $self->{sessions} };
	if (rand() < 0.5)
	{
		# There may be no server just now.
		my $pids = eval {
			$self->{gate}->value("SELECT pid FROM pg_stat_admission_gate_backends WHERE state <> 'waiting'");
		} // '';
		my %holds_slot = map { $_ => 1 } split /\n/, $pids;
		my @holders = grep { $holds_slot{ $_->pid } } @sessions;
		@sessions = @holders if @holders;
	}
	return $sessions[ rand @sessions ];
}

sub _choose { return @{ $scripts[ rand @scripts ] }; }

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
			$self->_note_end($session);
			$one->{pause} = time + 0.2;
			return 1;
		}
		$one->{session} = $session;
	}
	elsif ($one->{busy})
	{
		return 1 if !$session->done;
		$self->_note_end($session);
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
		$one->{steps} = [ ($one->{in_block} ? 'ROLLBACK' : ()), _choose() ];
	}

	my $step = shift @{ $one->{steps} };
	if (ref $step)
	{
		$step->($session);
		$one->{busy} = 1;
		$one->{pause} = time + (shift @{ $one->{steps} }) / 1000
		  if @{ $one->{steps} } && $one->{steps}[0] =~ /^\d+$/;
	}
	elsif ($step =~ /^\d+$/)
	{
		$one->{pause} = time + $step / 1000;
	}
	else
	{
		$step =~ s/:id\b/1 + int rand 1000/e;
		$step =~ s/:few\b/1 + int rand 10/e;
		$step =~ s/:pid\b/$session->pid/e;
		$session->start($step);
		$one->{busy} = 1;
	}
	return 1;
}

# Takes the answer of a session, or what it was told at its end.
sub _note_end
{
	my ($self, $session) = @_;

	my $result = $session->result;
	my $sqlstate =
		$result->{error} ? $result->{error}{C}
	  : $session->closed ? '08006'
	  :                    '00000';
	$self->{ends}{$sqlstate}++;
	$self->{texts}{$sqlstate} = $result->{error}{M} if $result->{error};
	foreach my $one (@{ $self->{sessions} })
	{
		$one->{in_block} = ($result->{status} // 'I') ne 'I'
		  if $one->{session} && $one->{session} == $session;
	}
	return;
}

# Prepared transactions whose sessions were ended before they could finish them.
sub _end_forgotten_transactions
{
	my ($self) = @_;

	return if time < ($self->{next_look} // 0);
	$self->{next_look} = time + 0.5;
	eval {
		my $gids = $self->{gate}->value(
			"SELECT gid FROM pg_prepared_xacts WHERE prepared < now() - interval '1 second'");
		$self->{gate}->observer->start("ROLLBACK PREPARED '$_'")->result foreach split /\n/, $gids;
	};
	return;
}

1;
