# Proves that with mode = observe nobody waits, not at hot spots either, that those who
# would have are counted, and that a reload switches between the modes at any time.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'observe',
	mode => 'observe',
	max_active_backends => 1,
	handoff_after => 0,
	max_connections => 150,
	lend_after => 60_000,
	log_statement => 'none');
my $node = $gate->node;

# Since the last time, would_queue has grown by so many, and nobody has queued.
my $would_queue = 0;

sub would_have_queued
{
	my ($n, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$would_queue += $n;
	is($gate->value('SELECT would_queue, queued, forced, rejections FROM pg_stat_admission_gate'),
		"$would_queue|0|0|0", "$what: would_queue + $n");
	$gate->ok_adds_up($what);
	return;
}

is($gate->value('SELECT mode, max_active FROM pg_stat_admission_gate'), 'observe|1', 'the mode holds from the start');

# ----------------------------------------------------------------
# Who would have queued
# ----------------------------------------------------------------

{
	my ($one, $two, $three) = map { $gate->session } 1 .. 3;

	$one->query('SELECT 1');
	would_have_queued(0, 'a statement that finds a slot free');
	$one->query('BEGIN');
	$two->start('SELECT 1');
	$gate->ok_passes($two, 'above the limit, nobody waits');
	would_have_queued(1, 'a statement above the limit');
	$two->start('BEGIN');
	$gate->ok_passes($two, 'nor does a transaction');
	$three->start('BEGIN');
	$gate->ok_passes($three, 'however far above');
	would_have_queued(2, 'two transactions above the limit');
	is($gate->gauges, '3|0|0', 'the number in use is above the limit');

	$gate->set(max_queue_length => 0);
	my $four = $gate->session;
	$four->start('SELECT 1');
	$gate->ok_passes($four, 'nobody is refused either');
	would_have_queued(1, 'who would have been refused counts as well');
	$gate->set(max_queue_length => -1);

	$two->query('COMMIT');
	$four->query('SELECT 1');
	would_have_queued(1, 'while the count is above the limit');
	$_->query('COMMIT') foreach ($one, $three);
	$four->query('SELECT 1');
	would_have_queued(0, 'when it is below');
	$_->quit foreach ($one, $two, $three, $four);
	$gate->ok_quiet('after observing');
}

# A transaction that may not wait would not have queued.
{
	my ($one, $two) = map { $gate->session } 1 .. 2;
	$two->query('SET admission_gate.scope = statement; BEGIN; SELECT 1');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$one->query('BEGIN');
	$two->query('SELECT 1');
	is($gate->value('SELECT would_queue, forced FROM pg_stat_admission_gate'),
		'0|1', 'forced admissions are counted as such');
	$_->quit foreach ($one, $two);
	$gate->ok_quiet('after a forced admission');
}

# ----------------------------------------------------------------
# Lending: who would have queued looks at the holders
# ----------------------------------------------------------------

{
	$gate->set(lend_after => 20);
	my $holder = $gate->holder;
	my $session = $gate->session;
	$gate->await_true(sub { $session->query('SELECT 1'); $gate->state($holder) eq 'lent' }, 'the idle holder to lend');
	is($gate->gauges, '0|1|0', 'an idle holder lends its slot');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$session->query('SELECT 1');
	is($gate->counter('would_queue'), '0', 'so the next one would not have queued');
	$holder->query('SELECT 1');
	is($gate->gauges, '1|0|0', 'until it works again');
	$_->quit foreach ($holder, $session);
	$gate->set(lend_after => 60_000);
	$gate->ok_quiet('after lending');
}

# ----------------------------------------------------------------
# Hot spots
# ----------------------------------------------------------------

{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/hot.sql';
	append_to_file($script, "BEGIN;\nUPDATE hot SET v = v + 1;\nSELECT pg_sleep(0.005);\nCOMMIT;\n");
	$gate->value('CREATE TABLE hot AS SELECT 0 AS v');
	$gate->set(max_active_backends => -1);
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	my $pgbench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '12', '-T', '3600', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
		'>' => \my $out,
		'2>' => \my $err);
	$gate->await(q{SELECT bool_or(max_active > 0) FROM pg_stat_admission_gate_hot_spots WHERE relation = 'hot'},
		'a hot spot with a limit');
	$gate->await('SELECT would_queue > 0 FROM pg_stat_admission_gate', 'one that would queue for it');
	is($gate->value('SELECT queued, waiting FROM pg_stat_admission_gate'), '0|0', 'nobody waits at a hot spot');
	$pgbench->signal('INT');
	$pgbench->finish;
	$gate->set(max_active_backends => 1);
	$gate->ok_quiet('after the hot spot');
}

# ----------------------------------------------------------------
# Switching
# ----------------------------------------------------------------

$gate->set(mode => 'enforce');

{
	my $holder = $gate->holder;
	my @waiters = map { $gate->session } 1 .. 5;
	for my $waiter (@waiters)
	{
		$waiter->start('BEGIN');
		$gate->await_queued($waiter);
	}
	$gate->set(mode => 'observe');
	$_->finish foreach @waiters;
	is($gate->gauges, '6|0|0', 'when the limit is no longer enforced, all who wait enter');

	$gate->set(mode => 'enforce');
	my $last = $gate->session;
	$last->start('SELECT 1');
	$gate->ok_waits($last, 'when it is enforced again, new ones wait');
	$_->query('COMMIT') foreach @waiters;
	$gate->ok_waits($last, 'until the count is below the limit');
	$holder->query('COMMIT');
	is($last->finish, '1', 'and then enter');
	$_->quit foreach ($holder, $last, @waiters);
	$gate->ok_quiet('after switching');
}

# To and fro under load
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/select.sql';
	append_to_file($script, "SELECT 1;\n");
	my $pgbench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '10', '-t', '1000', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
		'>' => \my $out,
		'2>' => \my $err);
	my $switches = 0;
	# It dies of a program that has ended meanwhile.
	while (eval { $pgbench->pump_nb })
	{
		$gate->set(mode => $switches++ % 2 ? 'enforce' : 'observe');
	}
	ok($pgbench->finish, "pgbench does well while the mode changes") or diag $err;
	cmp_ok($switches, '>', 1, 'as it did');
	$gate->ok_quiet('after pgbench');
	$gate->ok_adds_up('after pgbench');
}

$gate->set(mode => 'enforce');
$gate->ok_one_slot;
$gate->node->stop;

done_testing();
