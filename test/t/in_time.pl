# Proves that who can still be served in time goes first: a waiter that has used half of its
# time lets a newer one go before it, but none that is patient or may hold locks; and that a
# session that is refused again and again is refused later.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'in_time',
	max_active_backends => 1,
	pools => 'cancel: priority = 0; hang_up: priority = 0; one: priority = 0',
	max_connections => 80);

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
	my $late = $gate->waiter('SELECT 1', session => { 'admission_gate.queue_timeout' => '6s' });
	my $other = $gate->waiter($work);
	$gate->await_wait($late, 3000);
	my $newest = $gate->waiter($work, session => \%for_long);

	$holder->stop;
	ok_next($patient, 'no newer waiter goes before one without a time-out');
	$patient->stop;
	ok_next($newest, 'the newest one goes before one that has used half of its time');
	cmp_ok($gate->state($other, 'wait_time'), '>', 3000, 'wait_time is since its own arrival');
	is($gate->state($other), 'waiting', 'one without a time-out keeps its place');
	$newest->stop;
	ok_next($other, 'and is next');
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

# The time-outs of clients show when they cancel, or hang up.
sub goes_first
{
	my ($pool, $clients, $give_up) = @_;
	my %in_pool = ('admission_gate.pool' => $pool);
	my $holder = $gate->worker;
	my @clients = map { $gate->waiter('SELECT 1', session => \%in_pool) } 1 .. $clients;
	$gate->await_wait($clients[-1], 1000);
	my $patience = $gate->state($clients[0], 'wait_time');
	$give_up->($_) foreach @clients;
	$gate->await_waiting(0);

	my $late = $gate->waiter($work, session => \%in_pool);
	$gate->await_wait($late, 0.7 * $patience);
	my $newest = $gate->waiter($work, session => { %in_pool, %for_long });
	$holder->stop;
	$gate->await(
		sub {
			grep { $gate->state($_) eq 'running' } $late, $newest;
		},
		'the next one');
	my $first = $gate->state($newest) eq 'running' ? 'the newest' : 'the first';
	$gate->end_sessions;
	return $first;
}
my $cancel = sub { $_[0]->cancel };
is(goes_first('one', 1, $cancel), 'the first', 'one cancel tells nothing about other clients');
is(goes_first('cancel', 6, $cancel), 'the newest', 'several tell when clients give up');
is(goes_first('hang_up', 6, sub { $_[0]->hang_up }), 'the newest', 'so do clients that hang up');

# Refused again and again
{
	$gate->set(max_queue_length => 0);
	my $holder = $gate->worker;
	my $refused = $gate->session;
	my $event =
	  $gate->value(q{SELECT current_setting('server_version_num')::int >= 170000}) eq 't'
	  ? 'AdmissionGateRefusal'
	  : 'Extension';
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

# At a hot spot, a lone statement holds nothing; a block may hold locks.
{
	my $want = 'UPDATE sale SET n = n + 1 WHERE id = 1 RETURNING n';
	$gate->set(max_active_backends => -1);
	$gate->value('CREATE TABLE sale (id int PRIMARY KEY, n int) WITH (fillfactor = 20)',
		'INSERT INTO sale VALUES (1, 0)');
	my $crowd = $gate->crowd(24, "BEGIN; SELECT 1;\n$want, pg_sleep(0.01);\nCOMMIT;");
	$gate->ok_comes('bool_or(max_active > 0 AND waiting > 3) FROM pg_stat_admission_gate_hot_spots', 'a row is hot');

	my @holders = $gate->take_all_places($crowd, $want, 0);
	my %soon = (session => { 'admission_gate.queue_timeout' => '8s' });
	my $in_block = $gate->session(%soon);
	$in_block->query('BEGIN', 'SELECT 1');
	$gate->queue($in_block, $want);
	my $lone = $gate->waiter($want, %soon);
	$gate->await_wait($lone, 4000);
	my $newest = $gate->waiter("$want, pg_sleep(60)", session => \%for_long);
	$holders[0]->query('COMMIT');
	ok_next($in_block, 'one that may hold locks lets no other go first');
	is($gate->state($newest), 'waiting', 'the newest one waits');
	$gate->value('SELECT pg_terminate_backend(' . $in_block->pid . ')');
	ok_next($newest, 'the newest one goes before a lone statement that has used half of its time');
	is($gate->state($lone) || $lone->sqlstate, 'waiting', 'which waits');
	$gate->continue_gate_worker;
	$gate->set(max_active_backends => 1);
	$gate->end_sessions;
}

$gate->finish;
