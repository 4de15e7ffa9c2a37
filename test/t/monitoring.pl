# Proves that what is in monitoring/ works: the exporter shows what the views show,
# each of their columns, even when the gate is full; the dashboard and the alerts ask
# for metrics that there are; the psql script shows the pool and the waiters; and all
# show hot spots by name.

use strict;
use warnings;
use lib 'test/perl';
use CPAN::Meta::YAML;
use GateTest;
use HTTP::Tiny;
use JSON::PP;

my $package = 'prometheus-postgres-exporter';
my $gate = GateTest->new('monitoring', max_active_backends => 2, lend_after => 60_000);
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

# Runs the code while backends contend for the same row.
sub with_hot_spot
{
	my ($code) = @_;

	$gate->set(max_active_backends => -1);
	my $crowd = $gate->crowd(12, "BEGIN;\nUPDATE hot SET v = v + 1;\nSELECT pg_sleep(0.005);\nCOMMIT;\n");
	$gate->await(q{SELECT count(*) = 1 FROM pg_stat_admission_gate_hot_spots WHERE relation = 'hot' AND waiting > 0},
		'a queue at the hot spot');
	$code->();
	$gate->set(max_active_backends => 2);
	return $gate->ok_stops($crowd);
}

# The longest wait is that which the view shows before or after.
my $longest = q{SELECT max(wait_time) FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting'};

sub ok_longest
{
	my ($before, $ms, $what) = @_;
	my $after = $gate->value($longest);
	return ok($before <= $ms && $ms <= $after, $what) || diag "$before <= $ms <= $after";
}

# The psql script
sub screen_command
{
	my (@options) = @_;
	my @connection = ('-U', 'monitor', '-h', $node->host, '-p', $node->port, '-d', 'postgres');
	return [ 'psql', '-X', @connection, @options, '-f', 'monitoring/gate.sql' ];
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
		is_deeply(\@pids, [ map { $_->pid } @waiters ], 'and the waiters, who has waited longest first')
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
				return $screens =~ /^relation hot\b.* postgres +(?:\d+ +){4}[1-9]\d* /m
				  && !grep { ($pool->{$_} // 0) <= 0 } 'admitted/s', 'queued/s', 'ms/wait';
			},
			'when it looks again, it has rates, and a hot spot with its name, its limit and its queue'
		) or diag $screens;
		$psql->signal('INT');
		$psql->finish;
	});

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
		ok_longest($before, $waiting, 'and the longest wait of those waiting');
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
		map { my $value = $metric->{$_}; $_ => $value =~ /^[-+.\de]+$/ ? sprintf('%.6g', $value) : $value }
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

$gate->value('SELECT pg_stat_admission_gate_reset()');
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
			ok_longest($before, 1000 * $waiting, 'the longest wait is what the view shows');
			is(delete $metric->{'type of admission_gate_longest_waiting_seconds'}, 'gauge', 'in a gauge');
			delete @$metric{ grep { /\badmission_gate_hot_spot_/ } keys %$metric };
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
	$exporter->kill_kill;
	undef $exporter;
}

$gate->finish;
