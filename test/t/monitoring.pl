# Proves that what is in monitoring/ works: the exporter shows what the views show,
# each of their columns, even when the gate is full; the dashboard and the alerts ask
# for metrics that there are; the psql script shows the pool and the waiters; all show
# hot spots by name, also past ones; and an alert fires when the worker does not sample.

use strict;
use warnings;
use lib 'test/perl';
use CPAN::Meta::YAML;
use GateTest;
use HTTP::Tiny;
use JSON::PP;

my $package = 'prometheus-postgres-exporter';
my $gate = GateTest->new('monitoring', max_active_backends => 2, idle_after => -1);
my $node = $gate->node;

my ($role_commands) = slurp_file('docs/operations.md') =~ /^```sql\n(CREATE ROLE monitor\b.*?)^```$/ms;
$gate->value((split /;\n/, $role_commands), 'CREATE TABLE hot AS SELECT 0 AS v');

# Runs the code with the gate full: two hold the slots and two wait.
sub with_full_gate
{
	my ($code) = @_;

	my @holders = map { $gate->holder } 1 .. 2;
	my $impatient = $gate->session(session => { 'admission_gate.queue_timeout' => 1 });
	is($impatient->start('SELECT 1')->sqlstate, '53000', 'somebody times out in the queue');
	my @waiters = map { $gate->waiter(q{SELECT 'a waiter'}) } 1 .. 2;
	$code->(@waiters);
	$_->query('COMMIT') foreach @holders;
	$_->finish foreach @waiters;
	return $gate->ok_quiet('afterwards');
}

# Runs the code while backends contend for the same row.  Afterwards, the hot spot is a past one.
sub with_hot_spot
{
	my ($code) = @_;

	my $past = past('count(*)');
	$gate->set(max_active_backends => -1);
	my $crowd = $gate->crowd(12, "BEGIN;\nUPDATE hot SET v = v + 1;\nSELECT pg_sleep(0.005);\nCOMMIT;\n");
	$gate->await(q{SELECT count(*) = 1 FROM pg_stat_admission_gate_hot_spots WHERE relation = 'hot' AND waiting > 0},
		'a queue at the hot spot');
	$code->();
	$gate->set(max_active_backends => 2);
	$gate->ok_stops($crowd);
	$gate->set(hot_spots => 'off');
	$gate->await("SELECT count(*) > $past FROM pg_stat_admission_gate_past_hot_spots");
	return $gate->set(hot_spots => 'on');
}

# What the view has of the past hot spots at that row, in all
sub past { return $gate->value("SELECT $_[0] FROM pg_stat_admission_gate_past_hot_spots WHERE relation = 'hot'"); }

# What grows while the test looks
my $longest = q{SELECT max(wait_time) FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting'};
my $sample_age = 'SELECT extract(epoch FROM clock_timestamp() - last_sample) * 1000 FROM pg_stat_admission_gate_worker';

# The time is between that which the query yielded before and that which it yields now.
sub ok_meanwhile
{
	my ($query, $before, $ms, $what) = @_;
	my $after = $gate->value($query);
	return ok($before <= $ms && $ms <= $after, $what) || diag "$before <= $ms <= $after";
}

# The psql script
sub screen_command
{
	my (@options) = @_;
	my @connection = ('-U', 'monitor', '-h', $node->host, '-p', $node->port, '-d', 'postgres');
	return [ 'psql', '-X', @connection, @options, '-f', 'monitoring/gate.sql' ];
}

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
	my %pool;

	my @lines = $screens =~ /^(pool .*)\n(default .*)\n/mg or return {};
	@pool{ split ' ', $lines[-2] } = split ' ', $lines[-1];
	return \%pool;
}

with_full_gate(
	sub {
		my (@waiters) = @_;
		my $screen = screen();
		my $pool = pool_on($screen);
		is_deeply([ @$pool{qw(mode limit running waiting)} ], [ 'enforce', 2, 2, 2 ], 'and shows the pool')
		  or diag $screen;
		is($pool->{'admitted/s'}, undef, 'without rates when it looks for the first time');
		my @pids = $screen =~ /^ +(\d+) +\d+\.\d  .* SELECT 'a waiter'$/mg;
		is_deeply(\@pids, [ map { $_->pid } @waiters ], 'and the waiters, the longest wait first')
		  or diag $screen;
		@pids = screen('-v', 'waiters=1') =~ /SELECT 'a waiter'$/mg;
		is(scalar @pids, 1, 'or as many of them as it is told');
	});
with_hot_spot(
	sub {
		my $screens = '';
		my $psql = IPC::Run::start(screen_command('-v', 'every=0.2'), '>&' => \$screens);
		$gate->ok_comes(
			sub {
				$psql->pump_nb;
				my $pool = pool_on($screens);
				return $screens =~ /^relation hot +postgres +(?:\d+ +){4}(?:[1-9]\d* +){2}\(\d+,\d+\) /m
				  && !grep { ($pool->{$_} // 0) <= 0 } 'admitted/s', 'queued/s', 'ms/wait';
			},
			'when it looks again, it has rates, and a hot spot with its name, limit, queue, hot keys and row'
		) or diag $screens;
		$psql->signal('INT');
		$psql->finish;
	});
{
	my $figures = past(q{concat_ws(' +', count(*), max(most_in_line), round(sum(total_wait_time)::numeric / 1000, 1))});
	like(screen(), qr/^past hot spot .*\nrelation hot +postgres +$figures /m, 'and once it has ended, a past one');
}

# pgwatch
my $pgwatch = CPAN::Meta::YAML->read('monitoring/pgwatch.yaml')->[0];

# What a query yields: for each row, the values by the columns
sub rows_of
{
	my ($session, $query) = @_;
	return map { decode_json($_) } split /\n/, $session->query("SELECT row_to_json(r) FROM ($query) r");
}

# The rows of the metric, by the query for this server: that of the newest version that is not
# newer
sub pgwatch_rows
{
	my ($name) = @_;

	my $sqls = $pgwatch->{metrics}{$name}{sqls};
	my $major = int($gate->value('SHOW server_version_num') / 10000);
	my ($version) = sort { $b <=> $a } grep { $_ <= $major } keys %$sqls;
	my @rows = rows_of($gate->session(user => 'monitor'), $sqls->{$version});
	abs(delete($_->{epoch_ns}) / 1e9 - time) < 60 or fail("a row of $name has the time") foreach @rows;
	return @rows;
}

sub ok_gauges
{
	my ($name, @gauges) = @_;
	return is_deeply([ sort @{ $pgwatch->{metrics}{$name}{gauges} } ], [ sort @gauges ], "$name: gauges are marked");
}

# The columns of the pool's view, by type
my %column_type = map { split(/\|/, $_) } split /\n/, $gate->value(
	q{SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = 'pg_stat_admission_gate'::regclass AND attnum > 0});
my @gauges = grep { $column_type{$_} eq 'integer' } sort keys %column_type;
my @totals = grep { $column_type{$_} eq 'bigint' } sort keys %column_type;

with_full_gate(
	sub {
		my $before = $gate->value($longest);
		my @rows = pgwatch_rows('admission_gate');
		my ($waiting, $enforced) = delete @{ $rows[0] }{ 'longest_waiting', 'enforced' };
		ok_meanwhile($longest, $before, $waiting, 'and the longest wait of those waiting');
		is($enforced, 1, 'and whether the limit is enforced');
		my $numbers = join ', ', @gauges, @totals, 'total_wait_time', 'max_wait_time';
		is_deeply(
			\@rows,
			[ rows_of($gate->observer, "SELECT pool AS tag_pool, $numbers FROM pg_stat_admission_gate") ],
			'and each number of the view, and nothing else');
		ok_gauges('admission_gate', @gauges, 'enforced', 'longest_waiting', 'max_wait_time');
		my $waits = 'SELECT pool AS tag_pool, upper_bound::text AS tag_upper_bound, waits';
		is_deeply(
			[ pgwatch_rows('admission_gate_waits') ],
			[ rows_of($gate->observer, "$waits FROM pg_stat_admission_gate_histogram") ],
			'the waits are those of the histogram');
	});
$gate->value('SELECT pg_stat_admission_gate_reset()');
with_hot_spot(
	sub {
		my %hot;
		$gate->ok_comes(
			sub {
				my ($row) = grep { $_->{tag_name} eq 'hot' } pgwatch_rows('admission_gate_hot_spots');
				%hot = %{ $row // {} };
				return ($hot{waiting} // 0) > 0 && $hot{max_active} > 0;
			},
			'pgwatch shows a hot spot by its name, its limit and its queue');
		is_deeply([ @hot{qw(tag_kind tag_datname)} ], [qw(relation postgres)], 'and what it is');
		ok_gauges('admission_gate_hot_spots', grep { !/^tag_/ } keys %hot);
	});

# What the past hot spots come to, with that as the unit of time, in ms
sub past_figures
{
	my ($unit) = @_;
	return decode_json(
		past(
			"json_build_object('times', count(*), 'most_in_line', max(most_in_line), 'admitted', sum(admitted),
				'ended', extract(epoch FROM max(ended)) * 1000 / $unit, 'total_wait_time', sum(total_wait_time) / $unit)"));
}

{
	my ($row) = pgwatch_rows('admission_gate_past_hot_spots');
	my %tag = map { $_ => delete $row->{$_} } grep { /^tag_/ } keys %$row;
	is_deeply(
		\%tag,
		{ tag_kind => 'relation', tag_datname => 'postgres', tag_name => 'hot' },
		'pgwatch shows past hot spots by name');
	is_deeply(rounded($row), rounded(past_figures(1)), 'and what they come to');
	ok_gauges('admission_gate_past_hot_spots', keys %$row);
	ok_gauges('admission_gate_worker', 'sample_age');
}

# The alerts
my @alerts = map { @{ $_->{rules} } } @{ CPAN::Meta::YAML->read('monitoring/alerts.yaml')->[0]{groups} };
is_deeply(
	[ slurp_file('docs/operations.md') =~ /^\| `(AdmissionGate\w+)` \|/mg ],
	[ map { $_->{alert} } @alerts ],
	'docs/operations.md has all alerts, and no others');

# The exporter
my ($program) = grep { -x } map { ("$_/$package", "$_/postgres_exporter") } split(/:/, $ENV{PATH}), '/usr/bin';
my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($exporter, $exporter_log) = (undef, '');

END { local $?; $exporter->kill_kill if $exporter }

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
		my $is_hot_spot = $name =~ /^admission_gate_(?:past_)?hot_spot_/;
		next if $is_hot_spot && $labels !~ /\bname="hot"/;
		my ($le) = $labels =~ /\ble="([^"]+)"/;
		$metric{ defined $le ? "$name $le" : $name } = $value;
		my @labels =
		  $is_hot_spot ? ('datname="postgres"', 'kind="relation"') : $name =~ /_worker_/ ? () : 'pool="default"';
		$metric{"$name has not $_"} = $labels foreach grep { $labels !~ /\b$_/ } @labels;
	}
	$metric{"type of $1"} = $2 while $answer->{content} =~ /^# TYPE (admission_gate_\w+) (\w+)$/mg;
	return \%metric;
}

# What the exporter has to show, by the columns of the view and their types, with
# longest_waiting_seconds, hot spots and the worker left out
sub expected_metrics
{
	my $value = decode_json($gate->value('SELECT row_to_json(g) FROM pg_stat_admission_gate g'));
	my %metric;
	my $add = sub { my ($name, $type, $number) = @_; @metric{ $name, "type of $name" } = ($number, $type); };

	$add->("admission_gate_$_", 'gauge', $value->{$_}) foreach @gauges;
	$add->("admission_gate_${_}_total", 'counter', $value->{$_}) foreach @totals;
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
		map { my $value = $metric->{$_}; $_ => $value =~ /^[-+.\de]+$/ ? sprintf('%.10g', $value) : $value }
		  keys %$metric
	};
}

# Each metric that these expressions name is there.
sub ok_exported
{
	my ($what, @expressions) = @_;

	my %named = map { $_ => 1 } map { /\b(admission_gate_\w+)/g } @expressions;
	cmp_ok(scalar keys %named, '>', 0, "$what names metrics");
	my %there = map { s/ .*//r => 1 } keys %{ scrape() };
	return is_deeply([ grep { !$there{$_} } sort keys %named ], [], 'the exporter has all of them');
}

SKIP:
{
	if (!$program)
	{
		fail("the exporter is there: install $package") if -e '/etc/debian_version';
		skip "there is no exporter: install Debian's $package, or postgres_exporter", 1;
	}

	{
		local $ENV{DATA_SOURCE_NAME} = $node->connstr('postgres') . ' user=monitor';
		my $queries = '--extend.query-path=monitoring/postgres_exporter.yaml';
		$exporter =
		  IPC::Run::start([ $program, "--web.listen-address=127.0.0.1:$port", $queries ], '>&' => \$exporter_log);
	}
	my $answers =
	  $gate->await_true(sub { $exporter->pump_nb; !$exporter->pumpable || scrape() }, 'the exporter to answer');
	ok($answers && $exporter->pumpable, 'the exporter runs') or diag $exporter_log;

	with_full_gate(
		sub {
			my $before = $gate->value($longest);
			my $metric = scrape();
			my $waiting = delete $metric->{admission_gate_longest_waiting_seconds};
			ok_meanwhile($longest, $before, 1000 * $waiting, 'the longest wait is what the view shows');
			is(delete $metric->{'type of admission_gate_longest_waiting_seconds'}, 'gauge', 'in a gauge');
			delete @$metric{ grep { /\badmission_gate_(?:(?:past_)?hot_spot|worker)_/ } keys %$metric };
			is_deeply(
				rounded($metric),
				rounded(expected_metrics()),
				'the exporter shows each column of the views, and nothing else');
			is($metric->{admission_gate_waiting}, 2, 'while the gate is full');
			is($metric->{admission_gate_timeouts_total}, 1, 'and one has timed out');
		});
	with_hot_spot(
		sub {
			my $metric;
			my $name = 'admission_gate_hot_spot_';
			$gate->ok_comes(
				sub {
					$metric = scrape();
					return ($metric->{"${name}waiting"} // 0) > 0 && $metric->{"${name}max_active"} > 0;
				},
				'the exporter shows a hot spot by its name, its limit and its queue') or diag explain($metric);
			is_deeply(
				[ sort grep { /^$name/ } keys %$metric ],
				[ sort map { $name . $_ } qw(age_seconds hot_keys max_active contenders running blocked waiting) ],
				'and how many contend, and what it is') or diag explain($metric);
			is_deeply([ grep { /^type of $name/ && $metric->{$_} ne 'gauge' } keys %$metric ], [], 'in gauges');

			my $dashboard = decode_json(slurp_file('monitoring/grafana.json'));
			ok_exported(
				'the dashboard',
				(map { $_->{expr} } map { @{ $_->{targets} } } @{ $dashboard->{panels} }),
				(map { $_->{definition} // () } @{ $dashboard->{templating}{list} }));
			ok_exported("alert $_->{alert}", $_->{expr}) foreach @alerts;
		});
	{
		my $metric = scrape();
		my $name = 'admission_gate_past_hot_spot_';
		my $expected = past_figures(1000);
		$expected->{"${_}_seconds"} = delete $expected->{$_} foreach qw(ended total_wait_time);
		is_deeply(
			rounded({ map { $_ => $metric->{$_} } grep { /^$name/ } keys %$metric }),
			rounded({ map { $name . $_ => $expected->{$_} } keys %$expected }),
			'the exporter shows past hot spots, and what they come to');
		cmp_ok($metric->{"${name}times"}, '>', 1, 'where there were several, in all');
	}

	# The worker: stopped, then missing
	my ($expression) = map { $_->{expr} } grep { $_->{alert} eq 'AdmissionGateWorker' } @alerts;
	my ($age, $limit) = $expression =~ /^(admission_gate_worker_\w+) > (\d+)$/ or die $expression;
	my $fires = sub { return ((scrape() // {})->{$age} // 0) > $limit; };
	ok(!$fires->(), 'while the worker samples, its alert does not fire');
	my $worker = $gate->stop_gate_worker;
	{
		my ($samples, $time) = split /\|/,
		  $gate->value('SELECT samples, sample_time FROM pg_stat_admission_gate_worker');
		my $before = $gate->value($sample_age);
		my $metric = scrape();
		ok_meanwhile($sample_age, $before, 1000 * delete $metric->{$age}, 'when it is stopped, its last sample ages');
		delete @$metric{ grep { !/_worker_/ } keys %$metric };
		my ($samples_metric, $time_metric) = map { "admission_gate_worker_sample${_}_total" } 's', '_time_seconds';
		my %expected = ("type of $age" => 'gauge', $samples_metric => $samples, $time_metric => $time / 1000);
		$expected{"type of $_"} = 'counter' foreach $samples_metric, $time_metric;
		is_deeply(rounded($metric), rounded(\%expected), 'the exporter shows what it has done');
		my ($row) = pgwatch_rows('admission_gate_worker');
		is_deeply([ @$row{qw(samples sample_time)} ], [ $samples, $time ], 'and so does pgwatch');
		ok_meanwhile($sample_age, $before, $row->{sample_age}, 'and the age of the last sample');
		like(screen(), qr/^\S+ \S+ +worker: $worker, last sample \d+\.\d s ago$/m, 'the psql script shows the worker');
	}
	$gate->ok_comes($fires, 'the alert fires');
	$gate->set_soon(max_active_backends => 0);
	$gate->ok_comes(sub { !$fires->() }, 'not while the gate is off');
	is((pgwatch_rows('admission_gate_worker'))[0]->{sample_age}, 0, 'nor does pgwatch show an age then');
	$gate->continue_gate_worker;
	$gate->set(max_active_backends => 2);

	$gate->configure(max_worker_processes => 0, max_logical_replication_workers => 0);
	$gate->restart('fast');
	$gate->await_restart;
	$gate->ok_comes($fires, 'the alert fires where there is no worker');
	like(screen(), qr/^\S+ \S+ +worker: none$/m, 'and the psql script shows that');

	$exporter->kill_kill;
	undef $exporter;
}

$gate->finish;
