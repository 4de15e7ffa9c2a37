# Proves that fewer slots are given out while running backends block each other, that
# this ends with the reason for it, and that an error tells.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $limit = 8;
my $lowered = 'effective_max_active < max_active';
my $whole = 'effective_max_active = max_active';

my $gate = GateTest->new(
	'contention',
	max_active_backends => $limit,
	lend_after => 60_000,
	log_statement => 'none');
my $node = $gate->node;

$gate->value('CREATE TABLE sale (id int PRIMARY KEY, sold int)');
$gate->value('INSERT INTO sale SELECT id, 0 FROM generate_series(1, 100) id');

sub crowd { return $gate->crowd(@_); }

sub stop_crowd { return $gate->ok_stops(@_); }

sub await_limit
{
	my ($state, $what) = @_;
	return ok($gate->await_true(sub { $gate->value("SELECT $state FROM pg_stat_admission_gate") eq 't' }, $what),
		$what);
}

# Is the limit whole at so many looks, one after the other, while others wait?  At so
# many before, it may be lowered: none if not said.
sub is_whole_for
{
	my ($looks, $may_be_lowered) = @_;

	my $seen = 0;
	my $found_lowered = 0;
	$gate->await_true(
		sub {
			my ($waiting, $is_lowered) = split /\|/,
			  $gate->value("SELECT waiting, ($lowered)::int FROM pg_stat_admission_gate");
			$found_lowered++ if $is_lowered;
			$seen = $is_lowered ? 0 : $seen + ($waiting > 0);
			return $seen == $looks || $found_lowered > ($may_be_lowered // 0);
		},
		"$looks looks at a queue");
	return $seen == $looks;
}

# Holds its row while it sleeps, so that others are blocked even where there is one CPU.
my $hot_row = 'UPDATE sale SET sold = sold + 1 WHERE id = 1 RETURNING pg_sleep(0.002);';

is($gate->value("SELECT $whole FROM pg_stat_admission_gate"), 't', 'at first, all slots are given out');

# One row, wanted by all
my $crowd = crowd(3 * $limit, $hot_row);
await_limit("$lowered AND waiting > 0", 'while all want the same row, fewer slots are given out');

my $hurried = $gate->session(session => { 'admission_gate.queue_timeout' => '1ms' });
my $error;
$gate->await_true(
	sub {
		$error = $hurried->start('SELECT 1')->result->{error};
		return $error
		  && $error->{D} =~ /^The limit is $limit slots, lowered to [1-7] as running backends wait for each other /;
	},
	'an error that tells');
is($error->{H}, 'Try again later, or increase admission_gate.queue_timeout.', 'and what to do');
like(
	$error->{D},
	qr/ \(\d+ in use, 0 lent, \d+ waiting\); this backend has waited for \d+ ms\.$/,
	'the error of a time-out tells how many');
$hurried->quit;

$gate->set(load_control => 'off');
ok(is_whole_for(20, 50), 'with load_control = off, all slots are given out again, soon');
ok(is_whole_for(200), 'and it stays so');
$gate->set(load_control => 'on');
await_limit("$lowered AND waiting > 0", 'with load_control = on, fewer are again');

# All wait for one that does not go on.
my $observer = $gate->observer;
$observer->query('BEGIN; SELECT FROM sale WHERE id = 1 FOR UPDATE');
await_limit("$whole AND running = $limit AND waiting > 0",
	'while all are blocked for long by another, all slots are given out, though nobody comes who would look');
ok(is_whole_for(20), 'and it stays so');
$observer->query('COMMIT');
await_limit("$lowered AND waiting > 0", 'when they go on, fewer are');

stop_crowd($crowd);
is($gate->value("SELECT $whole FROM pg_stat_admission_gate"), 't', 'when nobody waits, all slots are given out');

# Nobody blocks another.
$crowd = crowd(3 * $limit, 'SELECT pg_sleep(0.01);');
ok(is_whole_for(200), 'while many wait but nobody is blocked, all slots are given out');
stop_crowd($crowd);

# More wait for a lock that somebody keeps, and have lent their slots, than do anything
# else: that neither lowers the limit nor hides a reason to.
$gate->set(lend_after => 100);
my $locker = $gate->session(session => { 'admission_gate.bypass' => 'on' });
$locker->query('BEGIN; SELECT FROM sale WHERE id = 2 FOR UPDATE');
my @stuck = map { $gate->session } 1 .. 2 * $limit;
$_->start('UPDATE sale SET sold = sold + 1 WHERE id = 2') foreach @stuck;
my $all_but_the_last = $limit;    # which lend to nobody
$gate->await("SELECT lent >= $all_but_the_last AND waiting = 0 FROM pg_stat_admission_gate");
$crowd = crowd(3 * $limit, 'SELECT pg_sleep(0.01);');
$gate->await("SELECT lent >= @{[ scalar @stuck ]} FROM pg_stat_admission_gate");
ok(is_whole_for(200, 20), 'while most wait for a lock that is kept, all slots are given out');
$crowd->signal('TERM');
$crowd->finish;
$crowd = crowd(3 * $limit, $hot_row);
await_limit("$lowered AND waiting > 0", 'while others want the same row beside them, fewer are');
$locker->query('COMMIT');
$_->finish foreach @stuck;
stop_crowd($crowd);
$gate->set(lend_after => 60_000);

$gate->set(mode => 'observe');
$crowd = crowd(3 * $limit, $hot_row);
$gate->await('SELECT would_queue > 1000 FROM pg_stat_admission_gate');
is($gate->value("SELECT $whole FROM pg_stat_admission_gate"), 't', 'while the limit is only observed, it is whole');
stop_crowd($crowd);

$node->stop;

done_testing();
