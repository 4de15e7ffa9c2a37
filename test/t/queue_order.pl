# Proves who goes first in a queue: who can still be served in time, that is, a waiter that has
# used half of its time lets a newer one go before it, but none that is patient or may hold
# locks; those for which others wait, and they do not enter above the limit without need; of
# those that may hold locks, whoever came first; and that a session that is refused again and
# again is refused later.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'queue_order',
	max_active_backends => 1,
	pools => join('; ', map { "$_: priority = 0" } qw(other one cancel hang_up at_work bound sooner)),
	max_connections => 140);

my $work = 'DO $$ BEGIN LOOP END LOOP; END $$';
my %for_long = (statement_timeout => '1h');

sub ok_next
{
	my ($session, $what) = @_;
	return $gate->ok_comes(sub { $gate->state($session) eq 'running' }, $what);
}

# The order: by arrival, but the late one and the last one have exchanged their tickets.
{
	my $holder = $gate->worker;
	my $patient = $gate->waiter($work);
	my $late = $gate->waiter('SELECT 1', session => { 'admission_gate.queue_timeout' => '10s' });
	my $other = $gate->waiter($work, session => { 'admission_gate.pool' => 'other' });
	$gate->await_wait($late, 5000);
	my $newest = $gate->waiter($work, session => \%for_long);

	$holder->stop;
	ok_next($patient, 'no newer waiter goes before one without a time-out');
	$patient->stop;
	ok_next($newest, 'the newest one goes before one that has used half of its time');
	is($gate->state($other), 'waiting', 'and before one of another pool that came later than that one');
	isnt($gate->state($late, 'wait_time > 5000'), 'f', 'wait_time is since its own arrival');
	$newest->stop;
	ok_next($other, 'one without a time-out keeps its place, and is next');
	is($late->sqlstate, '53000', 'the late one fails as if it had been first: by its time-out');
	$gate->end_sessions;
}

# Who has less time than the line takes has every other turn.
{
	my $holder = $gate->worker;
	my @line = map { $gate->waiter('SELECT clock_timestamp()', session => \%for_long) } 1 .. 6;
	$gate->await_wait($line[0], 6000);
	my $hurried = $gate->waiter('SELECT clock_timestamp()', session => { statement_timeout => '10s' });
	$holder->stop;
	my $served = $hurried->finish;
	cmp_ok(scalar(grep { $_->finish lt $served } @line),
		'<', 3, 'one with less time than the line takes does not wait for all of it');
	$gate->end_sessions;
}

# The time-outs of clients show when they cancel, or hang up: in the queue, or after it.
sub goes_first
{
	my ($pool, $clients, $give_up, $work_of_clients, %setting) = @_;
	my %in_pool = ('admission_gate.pool' => $pool, 'admission_gate.long_after' => -1);
	my $holder = $gate->worker;
	my @clients = map { $gate->waiter($work_of_clients // $work, session => { %in_pool, %setting }) } 1 .. $clients;
	$gate->await_wait($clients[-1], 2000);
	my $patience = $gate->state($clients[0], 'wait_time');
	$holder->stop if $work_of_clients;
	$give_up->($_) foreach @clients;
	$gate->await_waiting(0);
	$holder = $gate->worker if $work_of_clients;

	my $late = $gate->waiter($work, session => \%in_pool);
	$gate->await_wait($late, 0.6 * $patience);
	my $newest = $gate->waiter($work, session => { %in_pool, %for_long });
	$holder->stop;
	$gate->await(sub { $gate->state($late) . $gate->state($newest) =~ /running/ }, 'the next one');
	my $first = $gate->state($newest) eq 'running' ? 'the newest' : 'the first';
	$gate->end_sessions;
	return $first;
}
my $cancel = sub { $_[0]->cancel };
is(goes_first('one', 1, $cancel), 'the first', 'one cancel tells nothing about other clients');
is(goes_first('cancel', 6, $cancel), 'the newest', 'several tell when clients give up');
is(goes_first('hang_up', 6, sub { $_[0]->hang_up }), 'the newest', 'so do clients that hang up');
my $cancel_work = sub {
	my ($client) = @_;
	$gate->await(sub { $gate->state($client) eq 'running' }, 'the next client');
	$client->stop;
};
my $bound = sub { $_[0]->start_extended('SELECT count(*) FROM (SELECT generate_series(1, 1000000000)) s') };
is(goes_first('at_work', 6, $cancel_work, $work), 'the newest', 'so do cancels that come too late for the queue');
is(goes_first('sooner', 6, $cancel_work, $work, %for_long), 'the newest', 'or sooner than a time-out of the server');
is(goes_first('bound', 6, $cancel_work, $bound), 'the newest', 'also of a statement that waited by Bind');

# Refused again and again
{
	$gate->set(max_queue_length => 0);
	my $holder = $gate->worker;
	my $refused = $gate->session;
	my $event = $gate->value('SHOW server_version_num') >= 170000 ? 'AdmissionGateRefusal' : 'Extension';
	my $waits = sub { $gate->activity($refused, "wait_event = '$event' AND backend_xmin IS NULL") eq 't' };

	# Waits there, if it does before it has its answer
	my $is_delayed = sub {
		my $seen = 0;
		$refused->start('SELECT 1');
		$gate->await(sub { $refused->done || ($seen = $waits->()) }, 'an answer or a wait');
		return $seen;
	};
	my @first = map { $refused->start('SELECT 1')->sqlstate } 1 .. 4;
	is("@first", '53400 53400 53400 53400', 'a session is refused again and again');
	my $end = '';
	$gate->ok_comes(sub { my $seen = $is_delayed->(); $end = $refused->sqlstate; return $seen; },
		'it waits before the error, without a snapshot');
	is($end, '53400', 'which it gets');
	$gate->await(sub { my $seen = $is_delayed->(); $refused->cancel if $seen; return $refused->sqlstate eq '57014'; },
		'a canceled delay');
	pass('a cancel ends the delay');

	$refused->query(q{SET statement_timeout = '400ms'});
	my %ends = map { $refused->start('SELECT 1')->sqlstate => 1 } 1 .. 8;
	is(join(' ', sort keys %ends), '53400', 'it is not longer than half of the time that is left');
	$holder->stop;
	$gate->set(max_queue_length => -1);
	$gate->end_sessions;
}

# Hot rows
$gate->value(
	'CREATE TABLE sale (id int PRIMARY KEY, n int) WITH (fillfactor = 20)',
	'INSERT INTO sale VALUES (1, 0)',
	'CREATE TABLE news AS SELECT 0 AS edition');
my $want = 'UPDATE sale SET n = n + 1 WHERE id = 1 RETURNING n';

# A crowd that makes the row hot
sub heat
{
	my $crowd = $gate->crowd(24, "BEGIN; SELECT 1;\n$want, pg_sleep(0.01);\nCOMMIT;");
	$gate->ok_comes('bool_or(max_active > 0 AND waiting > 3) FROM pg_stat_admission_gate_hot_spots', 'a row is hot');
	return $crowd;
}

# Ends that crowd, beside which so many sessions hold slots; others take all places there and
# are returned.  From here on, the limit stays as it is, for the worker is stopped; not in a
# trial, which gives out more places.
sub take_all_places
{
	my ($crowd, $holders) = @_;

	$gate->await(
		sub {
			$gate->stop_gate_worker;
			return 1 if $gate->value('SELECT bool_or(max_active < 20) FROM pg_stat_admission_gate_hot_spots') eq 't';
			$gate->continue_gate_worker;
			return 0;
		},
		'a limit');
	$gate->stop_crowd($crowd);
	$gate->await(sub { $gate->gauges eq "$holders|0" }, 'the end of the crowd');

	# The first one has the row, the last one queues.
	my @owners;
	until (@owners && $gate->state($owners[-1]) eq 'waiting')
	{
		my $session = $gate->session;
		$session->query('BEGIN', 'SELECT 1');
		$session->start($want);
		$gate->await(
			sub { @owners ? $gate->activity($session, 'wait_event_type') =~ /Lock|Extension/ : $session->done },
			'an answer or a wait');
		push @owners, $session;
	}
	(pop @owners)->stop;
	return @owners;
}

# At a hot spot, a lone statement holds nothing; a block may hold locks.
{
	$gate->set(max_active_backends => -1);
	my @holders = take_all_places(heat(), 0);
	# Before the worker is missed, which it is after five seconds.
	my %soon = (session => { 'admission_gate.queue_timeout' => '4s' });
	my $in_block = $gate->session(%soon);
	$in_block->query('BEGIN', 'SELECT 1');
	$gate->queue($in_block, $want);
	my $lone = $gate->waiter($want, %soon);
	$gate->await_wait($lone, 2100);
	my $newest = $gate->waiter("$want, pg_sleep(60)", session => \%for_long);
	# Its client is patient after all: those of the crowd gave up sooner.
	$gate->await_wait($newest, 700);
	$holders[0]->query('COMMIT');
	ok_next($in_block, 'one that may hold locks lets no other go first');
	is($gate->state($newest), 'waiting', 'the newest one waits');
	$gate->value('SELECT pg_terminate_backend(' . $in_block->pid . ')');
	ok_next($newest, 'the newest one goes before a lone statement that has used half of its time');
	is($gate->state($lone) || $lone->sqlstate, 'waiting', 'which waits');
	$gate->continue_gate_worker;
	$gate->end_sessions;
}

# Of two that queue in the middle of their transactions, the first stays the first, also if it
# had to go behind one that holds no locks, for that had waited for 20 ms.
$gate->set(max_active_backends => 60, idle_after => 30_000);
{
	my ($beginner, $first, $second) = map { $gate->session } 1 .. 3;
	my $crowd = heat();

	# At its next BEGIN, it queues for what it always wanted.
	$beginner->query('BEGIN', $want, 'COMMIT') foreach 1 .. 8;
	$_->query('BEGIN', 'SELECT 1') foreach ($first, $second);

	my @holders = take_all_places($crowd, 2);
	$gate->queue($beginner, 'BEGIN');
	$gate->await(
		"SELECT clock_timestamp() > state_change + interval '20 ms' FROM pg_stat_admission_gate_backends
		WHERE pid = " . $beginner->pid);
	$gate->queue($first, $want);
	is($gate->value('SELECT waiter FROM pg_stat_admission_gate_hot_spots'), $beginner->pid, 'the oldest is first');
	$beginner->stop;
	$gate->queue($second, $want);
	$holders[0]->query('COMMIT');
	$gate->ok_comes(sub { $gate->state($first) eq 'running' }, 'a place goes to the one that came first');
	is($gate->state($second), 'waiting', 'the other one waits');
	$gate->continue_gate_worker;
	$gate->end_sessions;
}

# Each lone statement in the queue has its table's lock, which a stronger one waits for.
$gate->set(max_active_backends => 4, idle_after => 100);
{
	my $crowd = $gate->crowd(100, 'SELECT count(*) FROM news, generate_series(1, 8000);');
	my $locker = $gate->session;
	my $most = 0;
	$gate->await('SELECT sum(waiting) > 50 FROM pg_stat_admission_gate', 'a queue');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	foreach (1 .. 12)
	{
		$locker->start(q{BEGIN; SET LOCAL lock_timeout = '300ms'; LOCK TABLE news});
		until ($locker->done)
		{
			my $running = $gate->counter('running');
			$most = $running if $running > $most;
		}
		$locker->result;
		$locker->query('ROLLBACK');
	}
	cmp_ok($most, '<', 16, 'a stronger lock on the table of waiting statements does not open the gate');
	cmp_ok($gate->counter('stalls'), '<', 500, 'few of them enter above the limit');
	$gate->ok_stops($crowd);
}

# If all holders wait behind that lock, they do, one after the other; at once, not when the
# last resort would let the first of them in.
$gate->set(idle_after => -1);
{
	my @holders = map { $gate->holder } 1 .. 4;
	my @waiters = map { $gate->waiter('SELECT edition FROM news') } 1 .. 12;
	my $locker = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	$_->query('SELECT 1') foreach @holders;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	my $start = time;
	$gate->stop_gate_worker;
	$locker->start('BEGIN; LOCK TABLE news; COMMIT');
	$gate->await_wait_event_type($locker, 'Lock');
	$_->start('SELECT edition FROM news; COMMIT') foreach @holders;
	$gate->await_wait_event_type($_, 'Lock') foreach @holders;
	$gate->continue_gate_worker;
	$_->result foreach (@holders, @waiters, $locker);
	cmp_ok(time - $start, '<', 30, 'waiting statements enter if all holders wait for them');
	cmp_ok($gate->counter('stalls'), '>', 0, 'above the limit');
}

$gate->finish;
