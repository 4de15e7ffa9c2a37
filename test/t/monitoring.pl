# Proves that what is in monitoring/ works: the exporter shows what the views show,
# each of their columns, even when the gate is full; the dashboard and the alerts ask
# for metrics that there are; the psql script shows the pool and the waiters; and all
# show hot spots by name.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use CPAN::Meta::YAML;
use File::Temp qw(tempfile);
use GateTest;
use HTTP::Tiny;
use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $package = 'prometheus-postgres-exporter';

my $gate = GateTest->new(
	'monitoring',
	max_active_backends => 2,
	lend_after => 60_000);
my $node = $gate->node;

my ($role_commands) = slurp_file("$top/docs/operations.md") =~ /^```sql\n(CREATE ROLE monitor\b.*?)^```$/ms;
$gate->value($_) foreach split /;\n/, $role_commands;

# Starts pgbench with these transactions, or others, and more clients than slots; it goes
# on until it is interrupted.
sub start_pgbench
{
	my ($transaction) = (@_, "SELECT pg_sleep(0.005);\n");
	my ($handle, $script) = tempfile(DIR => PostgreSQL::Test::Utils::tempdir());
	print $handle $transaction;
	close $handle;
	return IPC::Run::start(
		[ 'pgbench', '-n', '-c', '12', '-T', '3600', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
		'>' => \my $out,
		'2>' => \my $err);
}

# ----------------------------------------------------------------
# The psql script
# ----------------------------------------------------------------

sub screen_command
{
	my (@options) = @_;
	return [
		'psql', '-X', '-U', 'monitor', '-h', $node->host, '-p', $node->port, '-d', 'postgres',
		@options, '-f', "$top/monitoring/gate.sql"
	];
}

# Looks once.
sub screen
{
	my (@options) = @_;

	IPC::Run::run(
		screen_command(@options),
		'>' => \my $screen,
		'2>' => \my $err,
		IPC::Run::timeout($GateClient::patience));
	is($err, '', join ' ', 'the psql script does well', @options);
	return $screen;
}

# The line of the pool on the last screen, as a hash by the headings
sub pool_on
{
	my ($screens) = @_;

	my @lines = $screens =~ /^(pool .*)\n(default .*)\n/mg or return {};
	my %pool;
	@pool{ split ' ', $lines[-2] } = split ' ', $lines[-1];
	return \%pool;
}

sub test_screen_of_waiters
{
	my ($holders, $waiters) = @_;

	my $screen = screen();
	my $pool = pool_on($screen);
	is_deeply([ @$pool{qw(mode limit running waiting)} ], [ 'enforce', 2, 2, 2 ], 'and shows the pool') or diag $screen;
	is($pool->{'admitted/s'}, undef, 'without rates when it looks for the first time');
	my @pids = $screen =~ /^ +(\d+) +\d+\.\d  .* SELECT 'a waiter'$/mg;
	is_deeply(\@pids, [ map { $_->pid } @$waiters ], 'and the waiters, who has waited longest first') or diag $screen;

	$screen = screen('-v', 'waiters=1');
	@pids = $screen =~ /SELECT 'a waiter'$/mg;
	is(scalar @pids, 1, 'or as many of them as it is told');
	return;
}

sub test_screen_of_rates
{
	my @rates = ('admitted/s', 'queued/s', 'ms/wait');
	my $pgbench = start_pgbench();
	my ($screens, $pool) = ('', {});
	my $psql = IPC::Run::start(screen_command('-v', 'every=0.2'), '>&' => \$screens);
	$gate->await_true(
		sub {
			$psql->pump_nb;
			$pool = pool_on($screens);
			return !$psql->pumpable || !grep { ($pool->{$_} // 0) <= 0 } @rates;
		},
		'rates on the screen');
	$_->signal('INT') foreach ($psql, $pgbench);
	$_->finish foreach ($psql, $pgbench);

	cmp_ok($pool->{$_} // 0, '>', 0, "when it looks again, it has a rate: $_") || diag $screens foreach @rates;
	return;
}

sub test_screen_of_hot_spots
{
	my $screen = '';
	my $psql = IPC::Run::start(screen_command('-v', 'every=0.2'), '>&' => \$screen);
	my $shown = $gate->await_true(
		sub {
			$psql->pump_nb;
			return !$psql->pumpable || $screen =~ /^relation hot\b.* postgres +(?:\d+ +){4}[1-9]\d* /m;
		},
		'the hot spot on the screen');
	ok($shown && $psql->pumpable, 'the screen shows a hot spot by its name, its limit and its queue') or diag $screen;
	$psql->signal('INT');
	$psql->finish;
	return;
}

# ----------------------------------------------------------------
# pgwatch
# ----------------------------------------------------------------

# What a query yields: for each row, the values by the columns
sub rows_of
{
	my ($session, $query) = @_;
	return map { decode_json($_) } split /\n/, $session->query("SELECT row_to_json(r) FROM ($query) r");
}

# The columns of the pool's view, by type
sub columns_of_type
{
	my ($type) = @_;
	return split /\n/, $gate->value(
		qq{SELECT attname FROM pg_attribute
			WHERE attrelid = 'pg_stat_admission_gate'::regclass AND attnum > 0 AND atttypid = '$type'::regtype});
}

# The query for this server: that of the newest version that is not newer
sub query_of
{
	my ($metric) = @_;

	my $major = int($gate->value('SHOW server_version_num') / 10000);
	my ($version) = sort { $b <=> $a } grep { $_ <= $major } keys %{ $metric->{sqls} };
	return $metric->{sqls}{$version};
}

sub test_pgwatch
{
	my $file = CPAN::Meta::YAML->read("$top/monitoring/pgwatch.yaml")->[0];
	my %query = map { $_ => query_of($file->{metrics}{$_}) } keys %{ $file->{metrics} };
	my $monitor = $gate->session(user => 'monitor');
	my @gauges = columns_of_type('integer');
	my $pools = join ', ', 'pool AS tag_pool', @gauges, columns_of_type('bigint'), columns_of_type('float8');

	my $longest = q{SELECT max(wait_time) FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting'};
	my $before = $gate->value($longest);
	my @rows = rows_of($monitor, $query{admission_gate});
	my $after = $gate->value($longest);
	cmp_ok(abs(delete($_->{epoch_ns}) / 1e9 - time), '<', 60, 'a row of pgwatch has the time') foreach @rows;
	my ($waiting, $enforced) = map {
		my $name = $_;
		map { delete $_->{$name} } @rows
	} 'longest_waiting', 'enforced';
	ok($before <= $waiting && $waiting <= $after, 'and the longest wait of those waiting')
	  or diag "$before <= $waiting <= $after";
	is($enforced, 1, 'and whether the limit is enforced');
	is_deeply(
		\@rows,
		[ rows_of($gate->observer, "SELECT $pools FROM pg_stat_admission_gate") ],
		'and each number of the view, and nothing else');
	is_deeply(
		[ sort @{ $file->{metrics}{admission_gate}{gauges} } ],
		[ sort @gauges, 'enforced', 'longest_waiting', 'max_wait_time' ],
		'those that are gauges are marked');

	@rows = rows_of($monitor, $query{admission_gate_waits});
	delete $_->{epoch_ns} foreach @rows;
	is_deeply(
		\@rows,
		[
			rows_of(
				$gate->observer,
				'SELECT pool AS tag_pool, upper_bound::text AS tag_upper_bound, waits FROM pg_stat_admission_gate_histogram'
			)
		],
		'the waits are those of the histogram');
	is_deeply(
		[ sort keys %{ $file->{presets}{admission_gate}{metrics} } ],
		[ sort keys %query ],
		'the preset has all metrics');
	$monitor->quit;
	return;
}

sub test_pgwatch_of_hot_spots
{
	my $metric = CPAN::Meta::YAML->read("$top/monitoring/pgwatch.yaml")->[0]{metrics}{admission_gate_hot_spots};
	my $monitor = $gate->session(user => 'monitor');
	my %hot;
	my $shown = $gate->await_true(
		sub {
			my ($row) = grep { $_->{tag_name} eq 'hot' } rows_of($monitor, query_of($metric));
			%hot = %{ $row // {} };
			return ($hot{waiting} // 0) > 0 && $hot{max_active} > 0;
		},
		'the hot spot');
	ok($shown, 'pgwatch shows a hot spot by its name, its limit and its queue');
	is_deeply([ @hot{qw(tag_kind tag_datname)} ], [qw(relation postgres)], 'and what it is');
	my @numbers = grep { !/^(?:tag_|epoch_ns$)/ } sort keys %hot;
	is_deeply([ sort @{ $metric->{gauges} } ], \@numbers, 'those that are gauges are marked');
	$monitor->quit;
	return;
}

# ----------------------------------------------------------------
# The exporter
# ----------------------------------------------------------------

my ($program) = grep { -x } map { ("$_/$package", "$_/postgres_exporter") } split(/:/, $ENV{PATH}), '/usr/bin';
my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($exporter, $exporter_log) = (undef, '');

sub start_exporter
{
	local $ENV{DATA_SOURCE_NAME} = $node->connstr('postgres') . ' user=monitor';

	$exporter = IPC::Run::start(
		[
			$program, "--web.listen-address=127.0.0.1:$port",
			"--extend.query-path=$top/monitoring/postgres_exporter.yaml"
		],
		'>&' => \$exporter_log);
	my $answers =
	  $gate->await_true(sub { $exporter->pump_nb; !$exporter->pumpable || scrape() }, 'the exporter to answer');
	ok($answers && $exporter->pumpable, 'the exporter runs') or diag $exporter_log;
	return;
}

sub stop_exporter
{
	$exporter->kill_kill if $exporter;
	undef $exporter;
	return;
}

END { local $?; stop_exporter() }

# The metrics of the gate: by name, and label "le" if there is one, the value
sub scrape
{
	my $answer =
	  HTTP::Tiny->new(timeout => $GateClient::patience, http_proxy => undef)->get("http://127.0.0.1:$port/metrics");
	return if !$answer->{success};
	my %metric;
	while ($answer->{content} =~ /^(admission_gate_\w+)\{(.*)\} (\S+)$/mg)
	{
		my ($name, $labels, $value) = ($1, $2, $3);
		my $is_hot_spot = $name =~ /^admission_gate_hot_spot_/;
		next if $is_hot_spot && $labels !~ /\bname="hot"/;
		my ($le) = $labels =~ /\ble="([^"]+)"/;
		$metric{ defined $le ? "$name $le" : $name } = $value;
		my @labels = $is_hot_spot ? ('datname="postgres"', 'kind="relation"') : 'pool="default"';
		$metric{"$name has not $_"} = $labels foreach grep { $labels !~ /\b$_/ } @labels;
	}
	$metric{"type of $1"} = $2 while $answer->{content} =~ /^# TYPE (admission_gate_\w+) (\w+)$/mg;
	return \%metric;
}

# What the exporter has to show, by the columns of the view and their types, with
# longest_waiting_seconds and hot spots left out
sub expected_metrics
{
	my %column_type = map { split(/\|/, $_) } split /\n/, $gate->value(
		q{SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
			WHERE attrelid = 'pg_stat_admission_gate'::regclass AND attnum > 0});
	my $value = decode_json($gate->value('SELECT row_to_json(g) FROM pg_stat_admission_gate g'));
	my %metric;
	my $add = sub { my ($name, $type, $number) = @_; @metric{ $name, "type of $name" } = ($number, $type); };

	foreach my $column (sort keys %column_type)
	{
		my $name = "admission_gate_$column";
		$add->($name, 'gauge', $value->{$column}) if $column_type{$column} eq 'integer';
		$add->("${name}_total", 'counter', $value->{$column}) if $column_type{$column} eq 'bigint';
	}
	$add->('admission_gate_enforced', 'gauge', $value->{mode} eq 'enforce' ? 1 : 0);
	$add->('admission_gate_max_wait_time_seconds', 'gauge', $value->{max_wait_time} / 1000);

	my $wait = 'admission_gate_wait_seconds';
	my $so_far = 0;
	for my $row (split /\n/,
		$gate->value('SELECT upper_bound / 1000, waits FROM pg_stat_admission_gate_histogram ORDER BY upper_bound'))
	{
		my ($bound, $waits) = split /\|/, $row;
		$so_far += $waits;
		$metric{ "${wait}_bucket " . ($bound eq 'Infinity' ? '+Inf' : $bound) } = $so_far;
	}
	$metric{"type of $wait"} = 'histogram';
	$metric{"${wait}_count"} = $so_far;
	$metric{"${wait}_sum"} = $value->{total_wait_time} / 1000;
	return \%metric;
}

# As numbers of one precision, for both sides write them in their own ways
sub rounded
{
	my ($metric) = @_;
	return {
		map { my $value = $metric->{$_}; $_ => $value =~ /^[-+.\de]+$/ ? sprintf('%.6g', $value) : $value }
		  keys %$metric
	};
}

sub test_exporter_under_load
{
	my $pgbench = start_pgbench();
	$gate->await('SELECT queued > 20 FROM pg_stat_admission_gate', 'a queue');
	my ($one, $two) = scrape();
	$gate->await_true(
		sub { $two = scrape(); $two->{admission_gate_admitted_total} > $one->{admission_gate_admitted_total} },
		'more admissions');
	$pgbench->signal('INT');
	$pgbench->finish;

	is($one->{admission_gate_max_active}, 2, 'under load, the exporter shows the limit');
	cmp_ok($one->{admission_gate_queued_total}, '>', 20, 'and the queue at work');
	is_deeply([ grep { /_total$/ && $one->{$_} > $two->{$_} } keys %$one ], [], 'and no total ever falls');
	return;
}

sub test_exporter_at_rest
{
	my $longest = q{SELECT max(wait_time) / 1000 FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting'};
	my $before = $gate->value($longest);
	my $metric = scrape();
	my $after = $gate->value($longest);

	delete @$metric{ grep { /\badmission_gate_hot_spot_/ } keys %$metric };
	my $waiting = delete $metric->{admission_gate_longest_waiting_seconds};
	is(delete $metric->{'type of admission_gate_longest_waiting_seconds'},
		'gauge', 'the longest wait of those waiting is a gauge');
	ok($before <= $waiting && $waiting <= $after, 'and is what the view shows') or diag "$before <= $waiting <= $after";
	is_deeply(
		rounded($metric),
		rounded(expected_metrics()),
		'the exporter shows each column of the views, and nothing else') or diag explain($metric), $exporter_log;
	is($metric->{admission_gate_waiting}, 2, 'while the gate is full');
	cmp_ok($metric->{admission_gate_wait_seconds_count}, '>', 0, 'and after waits');
	is($metric->{admission_gate_timeouts_total}, 1, 'one of which timed out');
	return;
}

sub test_exporter_of_hot_spots
{
	my $metric;
	my $name = 'admission_gate_hot_spot_';
	my $shown = $gate->await_true(
		sub {
			$metric = scrape();
			return ($metric->{"${name}waiting"} // 0) > 0 && $metric->{"${name}max_active"} > 0;
		},
		'the hot spot');
	ok($shown, 'the exporter shows a hot spot by its name, its limit and its queue') or diag explain($metric);
	is_deeply(
		[ sort grep { /^$name/ } keys %$metric ],
		[ sort map { $name . $_ } qw(age_seconds max_active contenders running blocked waiting) ],
		'and how many contend, and what it is') or diag explain($metric);
	is_deeply([ grep { /^type of $name/ && $metric->{$_} ne 'gauge' } keys %$metric ], [], 'in gauges');
	return;
}

# Whether each metric that these expressions name is there
sub ok_exported
{
	my ($what, @expressions) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my %named = map { $_ => 1 } map { /\b(admission_gate_\w+)/g } @expressions;
	cmp_ok(scalar keys %named, '>', 0, "$what names metrics");
	my %there = map { s/ .*//r => 1 } keys %{ scrape() };
	is_deeply([ grep { !$there{$_} } sort keys %named ], [], 'the exporter has all of them');
	return;
}

sub test_dashboard
{
	my $dashboard = decode_json(slurp_file("$top/monitoring/grafana.json"));
	ok_exported(
		'the dashboard',
		(map { $_->{expr} } map { @{ $_->{targets} } } @{ $dashboard->{panels} }),
		(map { $_->{definition} // () } @{ $dashboard->{templating}{list} }));
	return;
}

# ----------------------------------------------------------------
# The alerts
# ----------------------------------------------------------------

my $alerts_file = "$top/monitoring/alerts.yaml";

sub alerts
{
	return map { @{ $_->{rules} } } @{ CPAN::Meta::YAML->read($alerts_file)->[0]{groups} };
}

sub test_alerts
{
	for my $alert (alerts())
	{
		my $name = $alert->{alert};
		my @missing = grep { !$_->[1] } (
			[ expr => $alert->{expr} ],
			[ severity => $alert->{labels}{severity} ],
			(map { [ $_ => $alert->{annotations}{$_} ] } 'summary', 'description'));
		is_deeply([ map { $_->[0] } @missing ], [], "$name says what and how bad");
	}
	is_deeply(
		[ slurp_file("$top/docs/operations.md") =~ /^\| `(AdmissionGate\w+)` \|/mg ],
		[ map { $_->{alert} } alerts() ],
		'docs/operations.md has all alerts, and no others');

  SKIP:
	{
		my ($promtool) = grep { -x } map { "$_/promtool" } split(/:/, $ENV{PATH});
		skip 'there is no promtool', 1 if !$promtool;
		command_ok([ $promtool, 'check', 'rules', $alerts_file ], 'promtool finds no fault with them');
	}
	return;
}

sub test_metrics_of_alerts
{
	ok_exported("alert $_->{alert}", $_->{expr}) foreach alerts();
	return;
}

# ----------------------------------------------------------------

# Runs the code with the gate full: two hold the slots and two wait.
sub with_full_gate
{
	my ($code) = @_;

	my @holders = map { $gate->holder } 1 .. 2;
	my $impatient = $gate->session(session => { 'admission_gate.queue_timeout' => 1 });
	$impatient->start('SELECT 1');
	is($impatient->sqlstate, '53000', 'somebody times out in the queue');
	my @waiters = map { $gate->session } 1 .. 2;
	for my $waiter (@waiters)
	{
		$waiter->start(q{SELECT 'a waiter'});
		$gate->await_queued($waiter);
	}
	$code->(\@holders, \@waiters);
	$_->query('COMMIT') foreach @holders;
	$_->finish foreach @waiters;
	$_->quit foreach (@holders, @waiters, $impatient);
	$gate->ok_quiet('afterwards');
	return;
}

# Runs the code while backends contend for the same row.
sub with_hot_spot
{
	my (@code) = @_;

	$gate->set(max_active_backends => -1);
	my $pgbench = start_pgbench("BEGIN;\nUPDATE hot SET v = v + 1;\nSELECT pg_sleep(0.005);\nCOMMIT;\n");
	$gate->await(q{SELECT count(*) = 1 FROM pg_stat_admission_gate_hot_spots WHERE relation = 'hot' AND waiting > 0},
		'a queue at the hot spot');
	$_->() foreach @code;
	$pgbench->signal('INT');
	$pgbench->finish;
	$gate->set(max_active_backends => 2);
	$gate->ok_quiet('after the hot spot');
	return;
}

$gate->value('CREATE TABLE hot AS SELECT 0 AS v');
with_full_gate(\&test_screen_of_waiters);
test_screen_of_rates();
$gate->ok_quiet('after the screens');
with_full_gate(\&test_pgwatch);
with_hot_spot(\&test_screen_of_hot_spots, \&test_pgwatch_of_hot_spots);
test_alerts();
$gate->value('SELECT pg_stat_admission_gate_reset()');

SKIP:
{
	if (!$program)
	{
		fail("the exporter is there: install $package") if -e '/etc/debian_version';
		skip "there is no exporter: install Debian's $package, or postgres_exporter", 1;
	}
	start_exporter();
	test_exporter_under_load();
	$gate->ok_quiet('after the load');
	with_full_gate(\&test_exporter_at_rest);
	with_hot_spot(\&test_exporter_of_hot_spots, \&test_dashboard, \&test_metrics_of_alerts);
	stop_exporter();
}

$gate->node->stop;

done_testing();
