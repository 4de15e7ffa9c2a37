# Proves that EXPLAIN (ANALYZE, ADMISSION) shows what the gate has cost, in each
# format, from PostgreSQL 18 on.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use JSON::PP;
use Test::More;

my $gate = GateTest->new(
	'explain',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000);
my $session = $gate->session;

my $explain = 'EXPLAIN (ANALYZE, COSTS OFF, SUMMARY OFF, TIMING OFF, BUFFERS OFF, ADMISSION)';

if ($gate->value('SHOW server_version_num') < 180000)
{
	is($session->start("$explain SELECT 1")->sqlstate, '42601', 'before PostgreSQL 18, there is no such option');
	$gate->node->stop;
	done_testing();
	exit;
}

# With a holder in the only slot, starts a statement, and lets it in once it has
# waited for longer than so many ms.
sub wait_once
{
	my ($sql, $ms) = @_;

	my $holder = $gate->holder;
	$session->start($sql);
	$gate->await_queued($session);
	$gate->await("SELECT wait_time > $ms FROM pg_stat_admission_gate_backends WHERE pid = " . $session->pid);
	$holder->query('COMMIT');
	my $answer = $session->finish;
	$holder->quit;
	return $answer;
}

# What a session was told that it has waited is what it has.
sub ok_last_wait
{
	my ($shown, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($session->query('SELECT pg_admission_gate_last_wait()::numeric(20, 3)'), $shown, $what);
	return;
}

# ----------------------------------------------------------------
# What is shown
# ----------------------------------------------------------------

is( $session->query("$explain SELECT 1"),
	"Result (actual rows=1.00 loops=1)\nAdmission Wait: 0.000 ms",
	'who did not wait');
my ($shown) = wait_once("$explain SELECT 1", 20) =~ /^Admission Wait: (\d+\.\d{3}) ms$/m;
cmp_ok($shown // -1, '>', 20, 'who did');
ok_last_wait($shown, 'by the same clock as pg_admission_gate_last_wait()');

my ($json) = @{ decode_json(wait_once($explain =~ s/ADMISSION/ADMISSION, FORMAT json/r . ' SELECT 1', 0)) };
ok_last_wait(sprintf('%.3f', $json->{'Admission Wait'}), 'a number in JSON');
($shown) = wait_once($explain =~ s/ADMISSION/ADMISSION, FORMAT xml/r . ' SELECT 1', 0) =~
  m{<Admission-Wait>([\d.]+)</Admission-Wait>};
ok_last_wait($shown, 'an element in XML');

$session->query('PREPARE prepared AS SELECT 1');
like(wait_once("$explain EXECUTE prepared", 20), qr/^Admission Wait: (?!0\.000)[\d.]+ ms$/m, 'of a prepared statement');

wait_once('BEGIN', 20);
like(
	$session->query("$explain SELECT 1"),
	qr/^Admission Wait: (?!0\.000)[\d.]+ ms$/m,
	'in a block, it is what that has waited');
$session->query('COMMIT');

# ----------------------------------------------------------------
# What is not
# ----------------------------------------------------------------

unlike($session->query($explain =~ s/ADMISSION/ADMISSION off/r . ' SELECT 1'), qr/Admission/, 'the option can be off');
unlike($session->query($explain =~ s/, ADMISSION//r . ' SELECT 1'), qr/Admission/, 'and is, by default');
unlike($gate->value("$explain SELECT 1"), qr/Admission/, 'who bypasses the gate has nothing to show');
is( $session->start('EXPLAIN (ADMISSION) SELECT 1')->result->{error}{M},
	'EXPLAIN option ADMISSION requires ANALYZE',
	'without ANALYZE, the gate is not met');
is($session->query('EXPLAIN (ADMISSION off, COSTS OFF) SELECT 1'), 'Result', 'which matters only if the option is on');
is($session->start($explain =~ s/ADMISSION/ADMISSION 5/r . ' SELECT 1')->sqlstate, '42601', 'the option is a boolean');
$gate->set(max_active_backends => 0);
unlike($session->query("$explain SELECT 1"), qr/Admission/, 'without a gate, there is nothing to show');
$gate->set(max_active_backends => 1);

$session->quit;
$gate->ok_quiet('at the end');
$gate->node->stop;

done_testing();
