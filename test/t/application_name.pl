# Proves that sessions pass a full gate that began with an application_name of
# bypass_application_names, that no other name counts, and that a change of the list
# reaches the sessions there are.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'application_name',
	max_active_backends => 1,
	idle_after => -1,
	bypass_application_names => 'exact, "two words", "internal id=*"');

$gate->value(
	'CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 100) i',
	'GRANT SELECT ON t TO PUBLIC',
	'CREATE ROLE named LOGIN',
	"ALTER ROLE named SET application_name = 'exact'");

my $holder = $gate->holder;

# How a session does while the gate is full
sub passes
{
	my ($session, $what, $sql) = @_;
	return $gate->ok_runs($session, $sql // 'SELECT count(*) FROM t', "passes: $what");
}

sub waits
{
	my ($session, $what) = @_;
	$gate->ok_queues($session, 'SELECT count(*) FROM t', "waits: $what");
	return $session->stop;
}

# Which names
sub named { return $gate->session(application_name => $_[0]); }

passes(named($_), "the name \"$_\"") foreach ('exact', 'two words', 'internal id=', 'internal id=1234567890');
waits(named($_), "the name \"$_\"")
  foreach ('exactly', 'exac', 'Exact', 'two', 'internal id', ' internal id=1', 'two words,', '');
waits($gate->session, 'no name');
passes($gate->session(session => { application_name => 'exact' }), 'a name among the options');
passes($gate->session(user => 'named'), "the role's name");
waits($gate->session(user => 'named', application_name => 'another'), "a name in the place of the role's");

# All that meets the gate
{
	my $session = named('internal id=1');
	passes($session, $_, $_) foreach ('BEGIN', 'SELECT 1', 'COMMIT', 'VACUUM t', 'CREATE TEMP TABLE own AS SELECT 1');
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('prepared', 'SELECT count(*) FROM t');
	passes($session, "a $_ plan of a prepared statement", sub { $session->start_prepared('prepared') })
	  foreach ('new', 'cached');
	is($gate->gauges, '1|0', 'a session that passes is not counted');
}

# What changes it, and what does not
{
	my $session = named('another');
	for my $sql ("SET application_name = 'exact'", "SELECT set_config('application_name', 'internal id=1', false)")
	{
		$holder->query('COMMIT');
		$session->query($sql);
		$holder->query('BEGIN');
		waits($session, "nobody passes by $sql");
	}
	$session = named('exact');
	for my $sql ("SET application_name = 'another'", 'SET admission_gate.bypass = off', 'DISCARD ALL')
	{
		$session->query($sql);
		passes($session, "still so after $sql");
	}
}

# A session that has been at the gate before the reload, and one that has not
{
	my @sessions = map { named('late') } 1 .. 2;
	waits($sessions[0], 'a name that is not in the list');
	$gate->set(bypass_application_names => 'early, l*');
	passes($_, 'when the list has it') foreach @sessions;
	waits(named('exact'), 'a name that is in the list no more');

	# A mistake changes nothing.  The other setting tells when the session has reread them.
	$gate->node->append_conf('postgresql.auto.conf',
		"admission_gate.bypass_application_names = 'early late'\nlock_timeout = '1h'");
	$gate->value('SELECT pg_reload_conf()');
	$gate->ok_comes(
		sub { $sessions[0]->query('SHOW lock_timeout') eq '1h' },
		'a mistake in the list is in the way of no other setting');
	passes($sessions[0], 'with a mistake in the list, as before');

	$gate->set(bypass_application_names => '');
	waits($_, 'when the list is empty') foreach @sessions;
	$gate->set(bypass_application_names => '*');
	passes($sessions[1], 'any name by "*"');
	passes($gate->session, 'by "*", no name as well');
}

$holder->query('COMMIT');
$gate->set(bypass_application_names => '');
$gate->finish;
