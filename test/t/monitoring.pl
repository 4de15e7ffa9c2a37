# Proves that what is in monitoring/ works: both exporters have what the views show, each
# of their columns, even when the gate is full; the dashboard and the alerts ask for metrics
# that there are; the psql script shows the pool, who waits, holds and blocks, and hot spots
# by name, also past ones, in 100 columns; and an alert fires when the worker does not sample.

use strict;
use warnings;
use lib 'test/perl';
use CPAN::Meta::YAML;
use GateTest;
use HTTP::Tiny;
use JSON::PP;

my $package = 'prometheus-postgres-exporter';
my %settings = (max_active_backends => 2, idle_after => -1, pools => 'Default: max_queue_length = 7');
my $gate = GateTest->new('monitoring', %settings);
my $node = $gate->node;

my ($role_commands) = slurp_file('docs/operations.md') =~ /^```sql\n(CREATE ROLE monitor\b.*?)^```$/ms;
$gate->value((split /;\n/, $role_commands), 'CREATE TABLE hot AS SELECT 0 AS v');

# Runs the code with the gate full: two hold the slots, the first with a lock, and two wait.
sub with_full_gate
{
	my ($code) = @_;

	my @holders = map { $gate->holder } 1 .. 2;
	$holders[0]->query('LOCK TABLE hot IN EXCLUSIVE MODE');
	my $impatient = $gate->session(session => { 'admission_gate.queue_timeout' => 1 });
	is($impatient->start('SELECT 1')->sqlstate, '53000', 'somebody times out in the queue');
	my @waiters = map { $gate->waiter("SELECT $_, 'a waiter'") } 1 .. 2;
	$code->(@holders);
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
	is_deeply([ grep { length > 100 } split /\n/, $screen ], [], 'in at most 100 columns');
	return $screen;
}

# The line of the pool on the last screen, as a hash
sub pool_on
{
	my ($screens) = @_;
	my %pool;

	my ($line) = reverse $screens =~ /^(default .*)\n/mg or return {};
	@pool{qw(pool limit running working waiting longest in_time overdue refused queued)} = split ' ', $line;
	return \%pool;
}

with_full_gate(
	sub {
		my ($holder) = map { $_->pid } @_;
		my $blocked = $gate->session(session => { 'admission_gate.bypass' => 'on' });
		$blocked->start('TABLE hot FOR UPDATE');
		$gate->await(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'});
		my $screen = screen();
		my $pool = pool_on($screen);
		like($screen, qr/gate ON: max_active_backends = 2, mode = enforce\n/, 'and shows that the gate is on');
		is_deeply([ @$pool{qw(limit running waiting in_time)} ], [ 2, 2, 2, '0.0' ], 'and the pool') or diag $screen;
		cmp_ok($pool->{longest}, '>', 0, 'and the longest wait');
		like(
			$screen,
			qr/statement\n +$holder running +\d\S+ +1 idle in .*\n.* 0 idle/,
			'and who blocks others and holds slots') or diag $screen;
		like($screen, qr/^ +2 waiting +\d\S+  SELECT \?, \?$/m, 'and statements that differ in constants together');
		unlike(screen('-v', 'rows=1'), qr/idle in .*\n.* idle in/, 'or as many rows as it is told');
		$gate->value('SELECT pg_cancel_backend(' . $blocked->pid . ')');
	});
with_hot_spot(
	sub {
		my $screens = '';
		my $psql = IPC::Run::start(screen_command('-v', 'every=0.2'), '>&' => \$screens);
		$gate->ok_comes(
			sub {
				$psql->pump_nb;
				my $pool = pool_on($screens);
				return $screens =~ /^relation hot +postgres +(?:\d+ +){3}(?:[1-9]\d* +){2}\(\d+,\d+\)$/m
				  && !grep { ($pool->{$_} // 0) <= 0 } 'in_time', 'queued';
			},
			'when it goes on looking, it has rates, and a hot spot with its name, limit, queue, hot keys and row'
		) or diag $screens;
		$psql->signal('INT');
		$psql->finish;
	});
{
	my $figures = past(q{concat_ws(' +', count(*), max(most_in_line), round(sum(total_wait_time)::numeric / 1000, 1))});
	like(screen(), qr/^past hot spot .*\nrelation hot +postgres +$figures /m, 'and once it has ended, a past one');
}

# The alerts
my @alerts = map { @{ $_->{rules} } } @{ CPAN::Meta::YAML->read('monitoring/alerts.yaml')->[0]{groups} };

# The exporter
my ($program) = grep { -x } map { ("$_/$package", "$_/postgres_exporter") } split(/:/, $ENV{PATH}), '/usr/bin';
my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($exporter, $exporter_log) = (undef, '');

END { local $?; $exporter->kill_kill if $exporter }

# The metrics of the gate in what an exporter answers: by name, and label "le" if there is
# one, the value
sub metrics_in
{
	my ($answer) = @_;
	my %metric;

	while ($answer =~ /^(admission_gate_\w+)\{(.*)\} (\S+)$/mg)
	{
		my ($name, $labels, $value) = ($1, $2, $3);
		my $is_hot_spot = $name =~ /^admission_gate_hot_spot_/;
		next if $is_hot_spot && $labels !~ /\bname="hot"/;
		my ($le) = $labels =~ /\ble="([^"]+)"/;
		$metric{ defined $le ? "$name $le" : $name } = $value;
		my @labels =
		  $is_hot_spot ? ('datname="postgres"', 'kind="relation"') : $name =~ /_worker_/ ? () : 'pool="default"';
		$metric{"$name has not $_"} = $labels foreach grep { $labels !~ /\b$_/ } @labels;
	}
	$metric{"type of $1"} = $2 while $answer =~ /^# TYPE (admission_gate_\w+) (\w+)$/mg;
	return \%metric;
}

sub scrape
{
	my $answer =
	  HTTP::Tiny->new(timeout => $GateClient::patience, http_proxy => undef)->get("http://127.0.0.1:$port/metrics");
	return $answer->{success} ? metrics_in($answer->{content}) : undef;
}

# What sql_exporter would answer by its file
sub sql_exporter_metrics
{
	my $file = slurp_file('monitoring/sql_exporter.yaml');
	my $session = $gate->session(user => 'monitor');
	my (%rows, $answer);

	while ($file =~ /^  - query_name: (\w+)\n    query: \|\n((?:      .*\n)+)/mg)
	{
		my ($name, $query) = ($1, $2);
		$rows{$name} = [ map { decode_json($_) } split /\n/, $session->query("SELECT row_to_json(r) FROM ($query) r") ];
	}
	for my $metric ($file =~ /^  - \{metric_name: (.*)\}$/mg)
	{
		my ($name, $type, $labels, $value, $query) =
		  $metric =~ /^(\w+), type: (\w+), help: [^,]+, (?:key_labels: \[(.*)\], )?values: \[(\w+)\], query_ref: (\w+)$/
		  or die $metric;
		$answer .= "# TYPE $name $type\n" if @{ $rows{$query} };
		for my $row (@{ $rows{$query} })
		{
			my $where = join ',', map { qq{$_="$row->{$_}"} } split /, /, $labels // '';
			$answer .= "$name\{$where} $row->{$value}\n";
		}
	}
	return metrics_in($answer);
}

# The columns of the pool's view, by type
my %column_type = map { split(/\|/, $_) } split /\n/, $gate->value(
	q{SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = 'pg_stat_admission_gate'::regclass AND attnum > 0});
my @gauges = grep { $column_type{$_} eq 'integer' } sort keys %column_type;
my @totals = grep { $column_type{$_} eq 'bigint' } sort keys %column_type;

# What the exporter has to show, by the columns of the view and their types, with
# longest_waiting_seconds, hot spots and the worker left out
sub expected_metrics
{
	my $value = decode_json($gate->value('SELECT row_to_json(g) FROM pg_stat_admission_gate g'));
	my %metric;
	my $add = sub { my ($name, $type, $number) = @_; @metric{ $name, "type of $name" } = ($number, $type); };

	$add->("admission_gate_$_", 'gauge', $value->{$_}) foreach @gauges;
	$add->("admission_gate_${_}_total", 'counter', $value->{$_}) foreach @totals;
	$add->('admission_gate_max_queue_length', 'gauge', 7);
	$add->('admission_gate_max_connections', 'gauge', 50);
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
			delete @$metric{ grep { /\badmission_gate_(?:hot_spot|worker)_/ } keys %$metric };
			is_deeply(
				rounded($metric),
				rounded(expected_metrics()),
				'the exporter shows each column of the views, and nothing else');
			is($metric->{admission_gate_waiting}, 2, 'while the gate is full');
			is($metric->{admission_gate_timeouts_total}, 2, 'and two have timed out');
			my $other = sql_exporter_metrics();
			my $changes = qr/longest_waiting|worker_sample_age|^type of \w+_wait_seconds/;
			delete @$_{ grep { /$changes/ } keys %$_ } foreach $metric, $other;
			is_deeply(rounded($other), rounded($metric), 'sql_exporter shows the same');
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
			my $other = sql_exporter_metrics();
			is_deeply(
				[ sort grep { /hot_spot/ } keys %$other ],
				[ sort grep { /hot_spot/ } keys %$metric ],
				'and sql_exporter');

			my $dashboard = decode_json(slurp_file('monitoring/grafana.json'));
			my @expressions = (
				(map { $_->{expr} } map { @{ $_->{targets} } } @{ $dashboard->{panels} }),
				(map { $_->{definition} // () } @{ $dashboard->{templating}{list} }),
				(map { $_->{expr} } @alerts));
			my %there = map { s/ .*//r => 1 } keys %{ scrape() };
			my @named = map { /\b(admission_gate_\w+)/g } @expressions;
			is_deeply([ grep { !$there{$_} } @named ],
				[], 'the exporter has all metrics that the dashboard and the alerts name');
			is_deeply([ grep { !/admission_gate_/ } @expressions ], [], 'and all of these name some');
			my ($limit) = grep { $_->{targets}[0]{expr} =~ /^admission_gate_max_active\b/ } @{ $dashboard->{panels} };
			is($limit->{fieldConfig}{defaults}{min}, undef, 'and the limit may be -1');
		});

	# The worker: stopped, then missing
	my ($expression) = map { $_->{expr} } grep { $_->{alert} eq 'AdmissionGateWorker' } @alerts;
	my ($age, $limit) = $expression =~ /^(admission_gate_worker_\w+) > (\d+)$/ or die $expression;
	my $fires = sub { return ((scrape() // {})->{$age} // 0) > $limit; };
	ok(!$fires->(), 'while the worker samples, its alert does not fire');
	my $worker = $gate->stop_gate_worker;
	{
		my $before = $gate->value($sample_age);
		my ($shown, $other) = map { 1000 * $_->{$age} } scrape(), sql_exporter_metrics();
		ok_meanwhile($sample_age, $before, $_, 'when it is stopped, its last sample ages') foreach $shown, $other;
		like(screen(), qr/worker: $worker, last sample \d+\.\d s ago$/m, 'the psql script shows the worker');
	}
	$gate->ok_comes($fires, 'the alert fires');
	$gate->set_soon(max_active_backends => 0);
	$gate->ok_comes(sub { !$fires->() }, 'not while the gate is off');
	is(sql_exporter_metrics()->{$age}, 0, 'nor does sql_exporter show an age then');
	like(screen(), qr/gate OFF: /, 'and the psql script shows that');
	$gate->continue_gate_worker;
	$gate->set(max_active_backends => 2);

	$gate->configure(max_worker_processes => 0, max_logical_replication_workers => 0);
	$gate->restart('fast');
	$gate->await_restart;
	$gate->ok_comes($fires, 'the alert fires where there is no worker');
	like(screen(), qr/worker: none$/m, 'and the psql script shows that');

	$exporter->kill_kill;
	undef $exporter;
}

$gate->finish;
