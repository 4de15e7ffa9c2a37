# Proves that a limit bounds the backends at work: a holder that is not at work does not
# keep others out, whether it waits for its client, a timer or one in the queue; and that
# a transaction which was admitted once never waits at the gate again.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;
use List::Util qw(max);

my $gate = GateTest->new('at_work');

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

# A genuine deadlock is PostgreSQL's to find.
$gate->piece(
	'a deadlock',
	{ max_active_backends => 1, deadlock_timeout => 500 },
	sub {
		my ($one, $two) = map { $gate->session } 1 .. 2;
		$one->query('BEGIN; UPDATE t SET v = 1 WHERE id = 1');
		$two->query('BEGIN; UPDATE t SET v = 2 WHERE id = 2');
		$one->start('UPDATE t SET v = 1 WHERE id = 2');
		$gate->await_wait_event_type($one, 'Lock');
		$two->start('UPDATE t SET v = 2 WHERE id = 1');
		is(join(',', sort $one->sqlstate, $two->sqlstate), '00000,40P01', 'a deadlock of two row locks is found');
	});

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

# Statements are no work by themselves, nor are rows that come one by one: another session
# enters, while the function goes on.
sub ok_lets_in
{
	my ($what, $go_on) = @_;

	my $next = $gate->session;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$next->start('SELECT 2');
	$gate->ok_comes(sub { $go_on->(); $next->done }, "$what: lets a session in");
	is($gate->counter('stalls'), '0', "$what: by the limit");
	return is($next->finish, '2', "$what: which works");
}

$gate->piece(
	'transactions that send statements',
	{ max_active_backends => 4 },
	sub {
		my @chatty = map { $gate->holder } 1 .. 4;
		ok_lets_in('a short statement every 30 ms', sub { $_->query('SELECT 1') foreach @chatty; usleep(20_000) });
		$_->query('COMMIT') foreach @chatty;
	});

$gate->piece(
	'COPY FROM fed row by row',
	{ max_active_backends => 1 },
	sub {
		my $copy = $gate->session;
		$copy->query('CREATE TEMP TABLE copied (id int)');
		$copy->start('COPY copied FROM STDIN')->read_until('G');
		my $rows = 0;
		ok_lets_in('COPY FROM fed row by row',
			sub { ($copy->copy_data($rows++ . "\n"), usleep(1000)) foreach 1 .. 100; });
		$copy->copy_done;
		is($copy->result->{tags}[0], "COPY $rows", 'the COPY FROM ends well');
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
		$_->start('DO $$ BEGIN LOOP END LOOP; END $$') foreach @sessions;
		$gate->ok_comes(sub { $gate->counter('ARRAY[running, working, waiting]') eq '{4,4,26}' },
			'four of 30 that would work do');
		my $most = 0;
		for (1 .. 20)
		{
			$gate->await_samples(5);
			$most = max($most, $gate->counter('running'));
		}
		is($most, 4, 'and it stays so');
	});

$gate->finish;
