# Proves that sessions pass a full gate that began with an application_name of
# bypass_application_names, that no other name counts, and that a change of the list
# reaches the sessions there are.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use Test::More;

my $gate = GateTest->new(
	'application_name',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000,
	bypass_application_names => 'exact, "two words", "internal id=*"');

$gate->value($_)
  foreach (
	'CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 100) i',
	'GRANT SELECT ON t TO PUBLIC',
	'CREATE ROLE named LOGIN');

my $holder = $gate->holder;

# How a statement of a new session does while the gate is full
sub passes
{
	my ($what, %param) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $session = $gate->session(%param);
	$session->start('SELECT count(*) FROM t');
	$gate->ok_passes($session, "passes: $what");
	$session->quit;
	return;
}

sub waits
{
	my ($what, %param) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $session = $gate->session(%param);
	ok_queues($session, $what);
	$session->quit;
	return;
}

sub ok_queues
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$session->start('SELECT count(*) FROM t');
	$gate->ok_waits($session, "waits: $what");
	$session->cancel;
	$session->result;
	return;
}

# ----------------------------------------------------------------
# Which names
# ----------------------------------------------------------------

passes("the name \"$_\"", application_name => $_)
  foreach ('exact', 'two words', 'internal id=', 'internal id=1234567890', 'internal id=*');
waits("the name \"$_\"", application_name => $_)
  foreach ('exactly', 'exac', 'Exact', 'two', 'internal id', ' internal id=1', 'two words,');
waits('an empty name', application_name => '');
waits('no name');

# What a session begins with can come from elsewhere.
passes('a name among the options', session => { application_name => 'exact' });
$gate->value("ALTER ROLE named SET application_name = 'exact'");
passes("the role's name", user => 'named');
waits("a name in the place of the role's", user => 'named', application_name => 'another');

# ----------------------------------------------------------------
# All that meets the gate
# ----------------------------------------------------------------

{
	my $session = $gate->session(application_name => 'internal id=1');
	for my $sql ('BEGIN', 'SELECT 1', 'COMMIT', 'VACUUM t', 'CREATE TEMP TABLE own AS SELECT 1')
	{
		$session->start($sql);
		$gate->ok_passes($session, "passes: $sql");
	}
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('prepared', 'SELECT count(*) FROM t');
	for my $plan ('new', 'cached')
	{
		$session->start_prepared('prepared');
		$gate->ok_passes($session, "passes: a $plan plan of a prepared statement");
	}

	$session->query('BEGIN');
	$session->parse('', 'SELECT id FROM t')->bind('portal', '')->execute('portal', 10)->sync;
	is($session->result->{suspended}, 1, 'a portal is suspended');
	$session->execute('portal')->sync;
	is(scalar @{ $session->result->{rows} }, 90, 'and goes on');
	is($gate->gauges, '1|0|0', 'nobody who passes is counted');
	$session->query('COMMIT');

	$session->query('SET admission_gate.scope = statement');
	$session->start('SELECT 1');
	$gate->ok_passes($session, 'passes: a statement in statement scope');
	$session->quit;
}

# ----------------------------------------------------------------
# What changes it, and what does not
# ----------------------------------------------------------------

{
	my $session = $gate->session(application_name => 'another');
	for my $sql ("SET application_name = 'exact'", "SELECT set_config('application_name', 'internal id=1', false)")
	{
		$holder->query('COMMIT');
		$session->query($sql);
		$holder->query('BEGIN');
		ok_queues($session, "nobody passes by $sql");
	}
	$session->quit;

	$session = $gate->session(application_name => 'exact');
	for my $sql (
		"SET application_name = 'another'",
		'SET admission_gate.bypass = on',
		'SET admission_gate.bypass = off',
		'DISCARD ALL')
	{
		$session->query($sql);
		$session->start('SELECT 1');
		$gate->ok_passes($session, "passes: still so after $sql");
	}
	$session->quit;
}

# A session that has been at the gate before the reload, and one that has not
{
	my @sessions = map { $gate->session(application_name => 'late') } 1 .. 2;
	ok_queues($sessions[0], 'a name that is not in the list');

	$gate->set(bypass_application_names => 'early, l*');
	for my $session (@sessions)
	{
		$session->start('SELECT 1');
		$gate->ok_passes($session, 'passes: when the list has it');
	}
	waits('a name that is in the list no more', application_name => 'exact');

	# A mistake changes nothing.  The other setting tells when the session has reread them.
	$gate->node->append_conf('postgresql.auto.conf',
		"admission_gate.bypass_application_names = 'early late'\nlock_timeout = '1h'");
	$gate->value('SELECT pg_reload_conf()');
	ok( $gate->await_true(
			sub { $sessions[0]->query('SHOW lock_timeout') eq '1h' },
			'the session to reread its settings'),
		'a mistake in the list is in the way of no other setting');
	$sessions[0]->start('SELECT 1');
	$gate->ok_passes($sessions[0], 'passes: with a mistake in the list, as before');

	$gate->set(bypass_application_names => '');
	ok_queues($_, 'when the list is empty') foreach @sessions;

	$gate->set(bypass_application_names => '*');
	$sessions[1]->start('SELECT 1');
	$gate->ok_passes($sessions[1], 'passes: any name by "*"');
	passes('by "*", no name as well');
	$_->quit foreach @sessions;
}

$holder->query('COMMIT');
$holder->quit;

# ----------------------------------------------------------------
# A server that is its own client
# ----------------------------------------------------------------

SKIP:
{
	skip 'postgres_fdw is not installed', 2 if !$gate->has_contrib('postgres_fdw');

	$gate->value($_)
	  foreach (
		"CREATE SERVER itself FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '${\ $gate->node->host}', port '${\ $gate->node->port}')",
		'CREATE USER MAPPING FOR PUBLIC SERVER itself',
		"CREATE FOREIGN TABLE far (id int) SERVER itself OPTIONS (table_name 't')");
	my $session = $gate->session;

	$gate->set(bypass_application_names => '');
	$session->start('SELECT count(*) FROM far');
	$gate->await_waiting(1);
	is( $gate->value(
			"SELECT application_name FROM pg_stat_activity JOIN pg_stat_admission_gate_backends b USING (pid) WHERE b.gate_state = 'waiting'"
		),
		'postgres_fdw',
		'postgres_fdw waits for the slot of the session that waits for it');
	$session->cancel;
	$session->result;

	$gate->set(bypass_application_names => 'postgres_fdw');
	is($session->query('SELECT count(*) FROM far'), 100, 'and not if it passes by its name');
	$session->quit;
}

$gate->set(bypass_application_names => '');
$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');
$gate->node->stop;

done_testing();
