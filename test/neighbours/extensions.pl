# Proves that the gate works beside other extensions, in both orders of preloading,
# and that docs/poolers_and_clusters.md says truly what each of them makes of a wait in the
# queue.  All that are installed are there at once.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

# In what follows, no two statements may differ in constants and names of columns
# only: to pg_stat_statements they would be one.

# For how long a statement is left in the queue, in ms: much more than it takes by
# itself
my $long = 500;

# What wants to be preloaded, in an order that suits them, and what to do without
my @preloadable = qw(timescaledb pg_stat_statements pg_stat_kcache pg_wait_sampling auto_explain pgaudit pg_hint_plan);

my %settings = (
	max_active_backends => 1,
	idle_after => -1,
	max_connections => 150,
	max_worker_processes => 30,
	log_statement => 'none',
	log_min_duration_statement => 0,
	'pg_stat_statements.track_planning' => 'on',
	'pg_wait_sampling.history_period' => 10,
	'pg_wait_sampling.profile_period' => 10,
	'pgaudit.log' => 'read',
	'auto_explain.log_min_duration' => 0,
	'timescaledb.telemetry_level' => 'off');

my ($gate, $gate_is_first);

my $packaged = PostgreSQL::Test::Cluster->new('packaged');
my $library_dir = $packaged->config_data('--pkglibdir');
my $extension_dir = $packaged->config_data('--sharedir') . '/extension';

sub has_library { return -e "$library_dir/$_[0].so"; }

# Creates an extension; skips the tests if there is none.
sub create_or_skip
{
	my ($extension) = @_;

	skip "$extension is not installed", 1 if !-e "$extension_dir/$extension.control";
	$gate->value("CREATE EXTENSION IF NOT EXISTS $extension CASCADE");
	return note "$extension ", $gate->value("SELECT extversion FROM pg_extension WHERE extname = '$extension'");
}

# Has the session run a statement that is left in the queue for long.  Returns what
# was logged meanwhile.
sub wait_long
{
	my ($session, $start) = @_;

	my $logged = -s $gate->node->logfile;
	my $pid = $session->pid;
	my $holder = $gate->holder;
	$start->();
	$gate->ok_waits($session, 'it waits');
	$gate->await("SELECT wait_time > $long FROM pg_stat_admission_gate_backends WHERE pid = $pid", 'a long wait');
	$holder->query('COMMIT');
	is($session->sqlstate, '00000', 'it runs');
	$holder->quit;
	return slurp_file($gate->node->logfile, $logged);
}

# Whether a time (ms) has that wait in it
sub is_long
{
	my ($time, $expected, $what) = @_;
	return cmp_ok($time // 'nan', $expected ? '>=' : '<', $long, $what);
}

# The duration that a session's line of the log has: of that kind, and with that text
# somewhere after it
sub duration
{
	my ($session, $log, $kind, $text) = @_;
	my $pid = $session->pid;
	my ($duration) =
	  $log =~ /\[$pid\] client backend LOG:  duration: (\d+\.\d+) ms  $kind(?:(?!duration:).)*?\Q$text\E/s;
	return $duration;
}

# How the time of a statement that waited is accounted for.  What was preloaded
# after the gate is called before it, and has its clock running while it waits:
# that is for planning and utility commands.  The executor's clock always starts
# later.
sub test_accounting
{
	my $session = $gate->session;
	my %calls = (
		'SELECT count(*) AS planned FROM accounts' => 'planning',
		'SELECT count(*) AS prepared FROM accounts' => 'nothing',
		'BEGIN' => 'execution',
		'VACUUM accounts' => 'execution');

	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('prepared', 'SELECT count(*) AS prepared FROM accounts');
	$session->start_prepared('prepared')->result;
	for my $sql (sort keys %calls)
	{
		my $counts_in = $calls{$sql};
		my $log = wait_long(
			$session,
			sub {
				$gate->value('SELECT pg_stat_statements_reset()');
				$counts_in eq 'nothing' ? $session->start_prepared('prepared') : $session->start($sql);
			});
		$session->query('COMMIT') if $sql eq 'BEGIN';

		my ($calls, $planning, $execution) = split /\|/,
		  $gate->value("SELECT calls, total_plan_time, total_exec_time FROM pg_stat_statements WHERE query = '$sql'");
		is($calls, 1, "pg_stat_statements counts it once: $sql");
		is_long($planning, $gate_is_first && $counts_in eq 'planning', "pg_stat_statements' planning time: $sql");
		is_long($execution, $gate_is_first && $counts_in eq 'execution', "pg_stat_statements' execution time: $sql");
		is_long(duration($session, $log, 'plan', $sql), 0, "auto_explain's duration: $sql") if $sql =~ /^SELECT/;
		# A plan from the cache waits when it is bound.
		is_long(duration($session, $log, '(?:statement|bind)', $sql), 1, "log_min_duration_statement's: $sql");
	}
	return;
}

# What each of the others makes of statements that waited, one step a line.  Of the last one
# that waited:
#	logged PATTERN		its log has that once
#	says VALUE SQL		that is the answer now or soon; "first" is 1 with the gate first, else 0
my @cases = map { [ split /\n/ ] } split /\n\n/, <<'END';
extension pgaudit
wait SELECT count(*) AS audited FROM accounts
logged AUDIT: SESSION,\d+,\d+,READ,SELECT,[^\n]*AS audited

extension pg_stat_kcache
wait SELECT max(v) AS cached FROM accounts
says 1 SELECT count(*) FROM pg_stat_kcache() JOIN pg_stat_statements USING (queryid, userid, dbid) WHERE query LIKE '%AS cached%' AND pg_stat_kcache.top
says t SELECT sum(k.exec_user_time + k.exec_system_time + k.plan_user_time + k.plan_system_time) < :long FROM pg_stat_kcache() k JOIN pg_stat_statements USING (queryid, userid, dbid) WHERE query LIKE '%AS cached%' AND k.top

extension pg_wait_sampling
wait SELECT min(v) AS sampled FROM accounts
says t SELECT coalesce(sum(count), 0) > 0 FROM pg_wait_sampling_profile WHERE pid = :pid AND event_type = 'Extension' AND event IN ('AdmissionGateQueue', 'Extension')
says first SELECT count(*) FROM pg_wait_sampling_profile WHERE pid = :pid AND event_type = 'Extension' AND event IN ('AdmissionGateQueue', 'Extension') AND queryid = (SELECT queryid FROM pg_stat_statements WHERE query LIKE '%AS sampled%')

library pg_hint_plan
wait /*+ SeqScan(a) */ SELECT v AS hinted FROM accounts a WHERE id = 5
logged AS hinted(?:(?!duration:).)*Seq Scan on accounts
wait SELECT v AS unhinted FROM accounts a WHERE id = 5
logged AS unhinted(?:(?!duration:).)*Index Scan using

extension timescaledb
do CREATE TABLE metrics (at timestamptz NOT NULL, v int)
do SELECT create_hypertable('metrics', 'at', chunk_time_interval => interval '1 day')
wait INSERT INTO metrics SELECT now() + i * interval '1 hour', i FROM generate_series(1, 100) i
says t SELECT count(*) > 1 FROM timescaledb_information.chunks
wait SELECT time_bucket('1 day', at), sum(v) FROM metrics GROUP BY 1
says t SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type LIKE 'TimescaleDB%Scheduler'
says 0 SELECT count(*) FROM pg_stat_admission_gate_backends JOIN pg_stat_activity USING (pid) WHERE backend_type LIKE 'TimescaleDB%'
END

sub test_case
{
	my ($case) = @_;
	my $session = $gate->session;
	my ($log, $name);

	my %step = (
		extension => sub { create_or_skip($name = $_[0]) },
		library => sub { has_library($name = $_[0]) or skip "$name is not installed", 1 },
		do => sub { $gate->value($_[0]) },
		wait => sub {
			my ($sql) = @_;
			$log = wait_long($session, sub { $session->start($sql) });
		},
		logged => sub { is(scalar(() = $log =~ /$_[0]/sg), 1, "$name: it is logged once: $_[0]") },
		says => sub {
			my ($expected, $sql) = split / /, $_[0], 2;
			$expected = $gate_is_first ? 1 : 0 if $expected eq 'first';
			$sql =~ s/:pid/$session->pid/e;
			$sql =~ s/:long/$long \/ 1000.0/;
			$gate->ok_comes(sub { $gate->value($sql) eq $expected }, "$name: $sql");
		});
	foreach (@$case)
	{
		my ($step, $text) = split / /, $_, 2;
		$step{$step}->($text);
	}
	return $session->quit;
}

for my $order ('first', 'last')
{
	$gate_is_first = $order eq 'first';
	my @others = grep { has_library($_) } @preloadable;
	my @libraries = $gate_is_first ? ('admission_gate', @others) : (@others, 'admission_gate');
	$gate = GateTest->new("gate_$order", %settings, shared_preload_libraries => join ', ', @libraries);
	note "preloaded: @libraries";
	$gate->value(
		'CREATE EXTENSION pg_stat_statements',
		'CREATE TABLE accounts (id int PRIMARY KEY, v int)',
		'INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10000) i',
		'ANALYZE accounts');

	foreach my $test (@cases, \&test_accounting)
	{
	  SKIP:
		{
			eval { ref $test eq 'ARRAY' ? test_case($test) : $test->(); 1 } or fail("gate $order: $@");
		}
	}
	$gate->ok_quiet("gate $order, at the end");
	$gate->node->stop;
}

done_testing();
