# Proves that with max_active_backends = -1 the gate is open, closes while backends wait
# for each other, and only then, and opens again; and that the views tell.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'limit_finds_itself',
	max_active_backends => -1,
	max_connections => 100,
	log_statement => 'none');
my $node = $gate->node;

$gate->value('CREATE TABLE sale (id int PRIMARY KEY, sold int)');
$gate->value('INSERT INTO sale SELECT id, 0 FROM generate_series(1, 100) id');

sub crowd { return $gate->crowd(@_); }

sub stop_crowd { return $gate->ok_stops(@_); }

# The same, beside so many that are still there
sub stop_crowd_beside
{
	my ($crowd, $others) = @_;

	$crowd->signal('TERM');
	$crowd->finish;
	$gate->await("SELECT running + lent = $others AND waiting = 0 FROM pg_stat_admission_gate");
	return is(limit_is('effective_max_active'), '0', 'when nobody else is there, the gate is open');
}

sub limit_is { return $gate->value("SELECT $_[0] FROM pg_stat_admission_gate_limit"); }

sub await_limit
{
	my ($condition, $what) = @_;
	return ok($gate->await_true(sub { limit_is($condition) eq 't' }, $what), $what);
}

# Until somebody has looked for so many ms from now on
sub await_looks
{
	my ($ms) = @_;
	my $until = $gate->value("SELECT clock_timestamp() + interval '$ms ms'");
	return $gate->await_true(sub { limit_is("last_look > '$until'") eq 't' }, "looks for $ms ms");
}

# Holds its row while it sleeps, so that others are blocked even where there is one CPU.
my $hot_row = 'UPDATE sale SET sold = sold + 1 WHERE id = 1 RETURNING pg_sleep(0.002);';

is(limit_is("ROW(max_active_backends, effective_max_active, reason, open_rate, lowered_rate, open_until)"),
	'(-1,0,open,,,)', 'at first, the gate is open');
is($gate->value('SELECT ROW(max_active, effective_max_active) FROM pg_stat_admission_gate'),
	'(-1,0)', 'the pool has no limit');

# Nobody waits for anybody.
my $crowd = crowd(32, 'SELECT pg_sleep(0.001);');
await_looks(1500);
is($gate->value('SELECT ROW(effective_max_active, queued, forced) FROM pg_stat_admission_gate'),
	'(0,0,0)', 'while nobody is blocked, the gate stays open and nobody queues, though somebody looks');
stop_crowd($crowd);

# Nearly all wait for one who keeps a lock.
my $locker = $gate->session;
$locker->query('BEGIN; UPDATE sale SET sold = 0 WHERE id = 1');
my @stuck = map { $gate->session } 1 .. 32;
$_->start('UPDATE sale SET sold = 0 WHERE id = 1') foreach @stuck;
$gate->await_wait_event_type($_, 'Lock') foreach @stuck;
$crowd = crowd(4, 'SELECT pg_sleep(0.001);');
await_looks(1500);
is($gate->value('SELECT ROW(effective_max_active, queued, forced) FROM pg_stat_admission_gate'),
	'(0,0,0)', 'while all wait for a lock that is kept, the gate stays open');
is(limit_is('blocked < 8'), 't', 'and they do not count as blocked');
$locker->query('COMMIT');
$_->finish, $_->quit foreach @stuck;
stop_crowd($crowd);
is(limit_is('reason'), 'open', 'it has not closed so far');

# One row, wanted by all
$crowd = crowd(32, $hot_row);
await_limit(
	"effective_max_active BETWEEN 1 AND 31 AND reason = 'contention' AND blocked * 2 > working",
	'while all want the same row, the gate closes, and what that came of is told');
$gate->await("SELECT waiting > 0 FROM pg_stat_admission_gate WHERE effective_max_active BETWEEN 1 AND 16");
await_limit('effective_max_active > 0 AND lowered_rate > 0', 'it is seen whether that pays');

my $hurried = $gate->session(session => { 'admission_gate.queue_timeout' => '1ms' });
my $error;
$gate->await_true(
	sub {
		$error = $hurried->start('SELECT 1')->result->{error};
		return $error
		  && $error->{D} =~ /^The limit has found itself at \d+ slots?, as running backends wait for each other \(/;
	},
	'an error that tells');
is($error->{H}, 'Try again later, or increase admission_gate.queue_timeout.', 'and what to do');
$hurried->quit;

$gate->set(load_control => 'off');
$gate->await('SELECT effective_max_active = 0 AND waiting = 0 FROM pg_stat_admission_gate');
my $until = $gate->value('SELECT admitted + 500 FROM pg_stat_admission_gate');
$gate->await("SELECT admitted > $until FROM pg_stat_admission_gate");
is(limit_is('reason'), 'open', 'with load_control = off, the gate is open and stays so');
$gate->set(load_control => 'on');
await_limit('effective_max_active > 0', 'with load_control = on, it closes again');

$gate->set(mode => 'observe');
$gate->await('SELECT effective_max_active = 0 AND waiting = 0 FROM pg_stat_admission_gate');
pass('while the limit is only observed, the gate is open');
$gate->set(mode => 'enforce');
await_limit('effective_max_active > 0', 'when it is enforced again, the gate closes');
stop_crowd($crowd);
is(limit_is('effective_max_active'), '0', 'when nobody waits, the gate is open');

# One row, and many who want something else, of whom more is done than of the row.  What
# was found before is forgotten.
$gate->set(load_control => 'off');
$gate->set(load_control => 'on');
my @crowds = (crowd(40, $hot_row), crowd(8, 'SELECT 1;'));
await_limit(
	"reason = 'no gain' AND open_until > last_look AND effective_max_active = 0",
	'where less is done with fewer slots, the gate opens for a while, for all');
stop_crowd(@crowds);

# Who is idle in transaction does not hide that others are blocked, and a lender does not
# keep others from looking.
my @idle = map { $gate->session } 1 .. 40;
$_->query('BEGIN; SELECT 1') foreach @idle;
$crowd = crowd(32, $hot_row);
await_limit('effective_max_active > 0', 'the gate closes beside idle transactions');
$gate->await('SELECT lent > 0 FROM pg_stat_admission_gate');
stop_crowd_beside($crowd, 40);
$crowd = crowd(32, $hot_row);
await_limit('effective_max_active > 0', 'and again when they have lent their slots');
stop_crowd_beside($crowd, 40);
$_->query('COMMIT') foreach @idle;
$gate->ok_quiet('the idle transactions are over');

# A pool's own limit holds.
$gate->set(pools => 'batch: max_active = 1', lend_after => 60_000);
my ($holder, $waiter) = map { $gate->session(session => { 'admission_gate.pool' => 'batch' }) } 1 .. 2;
$holder->query('BEGIN');
$waiter->start('SELECT 1');
$gate->await_queued($waiter);
is( $gate->value(
		q{SELECT ROW(max_active, effective_max_active, running, waiting)
		FROM pg_stat_admission_gate WHERE pool = 'batch'}),
	'(1,1,1,1)',
	'the limit of a pool holds');
is($gate->session->query('SELECT 1'), '1', 'while others pass');
$holder->query('COMMIT');
is($waiter->finish, '1', 'a slot of the pool is passed on');

# A limit that is set
$gate->set(max_active_backends => 5);
is(limit_is('ROW(max_active_backends, effective_max_active)'), '(5,5)', 'a limit that is set is shown');
$gate->set(max_active_backends => 0);
is(limit_is('ROW(max_active_backends, effective_max_active)'), '(0,0)', 'and so is none');

$gate->ok_adds_up('at the end');
$node->stop;

# With room for thousands of backends, looks are rare.  So those that come at once meet the
# limit of an open gate before it has grown: they wait, although there is to be no queue.
$gate = GateTest->new(
	'opening',
	max_active_backends => -1,
	max_queue_length => 0,
	lend_after => 60_000,
	max_connections => 4000);
my @at_once = map { $gate->session } 1 .. 150;
$_->start('BEGIN; SELECT 1') foreach @at_once;
is(join(',', map { $_->finish // '' } @at_once), join(',', ('1') x @at_once), '150 that come at once all enter');
is( $gate->value(
		'SELECT ROW(running, waiting, forced, stalls, rejections, effective_max_active) FROM pg_stat_admission_gate'),
	'(150,0,0,0,0,0)',
	'none above the limit, and none is refused');
is($gate->value('SELECT queued > 0 FROM pg_stat_admission_gate'), 't', 'though some had to wait');
await_limit('open_limit > 150', 'until the open limit had grown');
$_->start('COMMIT') foreach @at_once;
$_->finish, $_->quit foreach @at_once;
$gate->ok_quiet('at last');
$gate->node->stop;

done_testing();
