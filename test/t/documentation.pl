# Proves that the documentation is complete and true: every setting with its
# default, unit, range and context, every object of the extension with its
# comment, and every column with its type is in docs/, and nothing that does not
# exist is; links lead somewhere, and the SQL to type works.  What there is comes from a
# server, so this file knows no names.

use strict;
use warnings;
use lib 'test/perl';
use File::Basename;
use GateTest;

my $gate = GateTest->new('documentation');

# The rows of a query, each a reference to its columns
sub rows
{
	my ($sql) = @_;
	return map { [ split /\|/, $_, -1 ] } split /\n/, $gate->value($sql);
}

# The headings of a page at that level, each with what stands below it
sub sections
{
	my ($page, $level) = @_;
	return slurp_file($page) =~ /^$level (.+?)\n(.*?)(?=^##+ |\z)/msg;
}

# What a table says: for each name in its first column the other cells
sub table
{
	my ($text) = @_;
	return $text =~ /^\| \[?`([^`]+)`(?:\]\([^)]*\))? \| (.*?) \|$/mg;
}

# Settings
my %set_by = (
	internal => 'nobody',
	sighup => 'reload',
	superuser => 'superuser',
	user => 'any user');

# What the first line of its section has to say of a setting, as a pattern: zero and -1
# mean something special and so have no unit, and a plain number is one of something.
sub setting_line
{
	my ($type, $unit, $context, $default, $min, $max, @options) = @_;

	my $range =
		$type eq 'bool'   ? 'boolean'
	  : $type eq 'enum'   ? join(', ', map { "`$_`" } @options)
	  : $type eq 'string' ? qr/[^.]+/
	  : "$min … \Q$max\E" . ($unit ? " $unit" : qr/( \w+)?/);
	if ($type eq 'integer' || $type eq 'real')
	{
		$default .= " $unit" if $unit && $default > 0;
	}
	else
	{
		$default = $default eq '' ? 'empty' : "`$default`";
	}
	return qr/^\nDefault: \Q$default\E\. Range: $range\. Context: $set_by{$context}\.\n/;
}

my %expected_setting = map { shift @$_ => setting_line(@$_) } rows(
	q{SELECT substr(name, 16), vartype, unit, context, boot_val, min_val, max_val, array_to_string(enumvals, '|')
		FROM pg_settings WHERE name LIKE 'admission\_gate.%'});
my %settings_section = sections('docs/settings.md', '###');

for my $name (sort keys %expected_setting)
{
	like(
		$settings_section{$name} // '',
		$expected_setting{$name},
		"docs/settings.md tells default, range and context of $name");
}
is_deeply([ sort keys %settings_section ], [ sort keys %expected_setting ], 'it has these settings and no others');
my ($list) = slurp_file('docs/settings.md') =~ /\A(.*?)^## /ms;
is_deeply([ sort $list =~ /\[`(\w+)`\]\(#/g ], [ sort keys %expected_setting ], 'and so has its list');

# Objects of the extension, and the columns of the views
#
# The views' row types, members from PostgreSQL 17 on, are left out.
my %comment = map { @$_ } rows(
	q{SELECT CASE classid::regclass::text
			WHEN 'pg_proc' THEN objid::regprocedure::text
			WHEN 'pg_class' THEN objid::regclass::text
			ELSE pg_describe_object(classid, objid, 0) END,
		obj_description(objid, classid::regclass::name)
	FROM pg_depend
	WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'admission_gate')
		AND classid <> 'pg_type'::regclass});

my %views_section = sections('docs/views.md', '##');
my ($index) = slurp_file('docs/views.md') =~ /\A(.*?)^## /ms;
my %index = table($index);

is_deeply(\%index, \%comment, 'docs/views.md begins with all objects and their comments');

for my $name (sort grep { !/\)$/ } keys %comment)
{
	my %column = map { @$_ } rows(
		"SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
			WHERE attrelid = '$name'::regclass AND attnum > 0");
	my %documented = table($views_section{$name} // '');
	s/ \| .*// foreach values %documented;
	is_deeply(\%documented, \%column, "docs/views.md has the columns of $name and their types");
}

# Names anywhere; one that looks like a setting is that of a file
my %exists = map { s/\(.*//r => 1 } keys %comment;
my @pages = glob '*.md docs/*.md bench/*.md';
for my $page (@pages)
{
	my $text = slurp_file($page);
	my @settings = grep { $_ ne 'control' } $text =~ /\badmission_gate\.([a-z_]{3,})/g;
	is_deeply([ grep { !$expected_setting{$_} } @settings ], [], "$page names no setting that does not exist");
	is_deeply([ grep { !$exists{$_} } $text =~ /\b(pg_\w*admission_gate\w*)/g ],
		[], "$page names no view or function that does not exist");
}

# What a heading is called in a link
sub anchor { return lc($_[0]) =~ s/[^\w\s-]//gr =~ s/ /-/gr; }

# An alert names its page as from here.
my @broken;
for my $page (@pages, 'monitoring/alerts.yaml')
{
	for my $link (slurp_file($page) =~ /(?:\]\((?!https?:)|runbook: )([^)\s]+)/g)
	{
		my ($file, $heading) = split /#/, $link;
		$file = $file eq '' ? $page : $page =~ /yaml$/ ? $file : dirname($page) . "/$file";
		# make dist leaves these out.
		next if $file =~ m{\bbench/results\b} && !-d 'bench/results';
		push @broken, "$page: $link"
		  if !-e $file || (defined $heading && !grep { anchor($_) eq $heading } slurp_file($file) =~ /^#+ (.+)$/mg);
	}
}
is_deeply(\@broken, [], 'links lead somewhere');

# SQL to type; README.md has a test of its own.
my %blocks = map { $_ => [ slurp_file($_) =~ /^ *```sql\n(.*?)^ *```$/msg ] } grep { m{^docs/} } @pages;

# What the examples are about, unless they create it
my $sql = join '', map { @$_ } values %blocks;
my %created = map { $_ => 1 } $sql =~ /\bCREATE ROLE (\w+)/g;
my %role = map { $_ => 1 } $sql =~ /\b(?:ALTER ROLE|TO) (\w+)/g;
$gate->value("CREATE ROLE $_") foreach grep { !$created{$_} } sort keys %role;
$gate->value('CREATE TABLE orders ()');

for my $page (sort keys %blocks)
{
	$gate->value('CREATE EXTENSION IF NOT EXISTS admission_gate');
	for my $block (@{ $blocks{$page} })
	{
		my ($name) = $block =~ /(\S.*)/;
		my ($status, undef, $error) = $gate->node->psql('postgres', $block);
		is($status, 0, "$page: works: $name") or diag $error;
	}
}

$gate->node->stop;

done_testing();
