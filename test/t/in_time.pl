# Proves that who can still be served in time goes first: a waiter that has used half of its
# time lets a newer one go before it, but none that is patient or may hold locks.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'in_time',
	max_active_backends => 1,
	handoff_after => 0,
	max_connections => 80);

my $work = 'DO $$ BEGIN LOOP END LOOP; END $$';
my %for_long = (statement_timeout => '1h');

sub await_wait
{
	my ($session, $ms) = @_;
	return $gate->await(sub { ($gate->state($session, 'wait_time') || 0) > $ms }, "a wait of $ms ms");
}

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
	await_wait($late, 3000);
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

$gate->finish;
