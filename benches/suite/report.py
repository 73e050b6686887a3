"""Tables and plots of a result: benchmarks.md, its pictures, and the figures in the README."""

import plot
import targets
from context import ROOT
from figures import Result, rounded
from parts import citus, instructions, micro

LATENCIES = ("p50", "p75", "p90", "p99", "p99.9")
# Contestants in the order of the tables.
ORDER = ("plantstore", "pocketbase", "fastify", "fastapi", "json-server", "kinto", "bare", "sqlite")
# The measurement of each operation that has the workload of all contestants: the list of another user each time.
LISTS = {"plantstore": "plantstore/list, other users"}
VERDICTS = {targets.MET: "✓ met", targets.WITHIN_SPREAD: "≈ missed within the spread", targets.MISSED: "✗ missed", targets.NOT_MEASURED: "not measured"}
INTRODUCTION = """<!-- generated: scripts/bench -->
# Benchmarks

Written by `scripts/bench` from [its result file](benchmarks/result.json); anyone can run it. [Performance](design/performance.md)
describes how the figures are taken and what they mean.
"""


DOCS = ROOT / "docs"


def write(result, output):
    """Writes the result file, the plots and the page; for the documentation also what other pages take from the result."""
    result.write(output / "benchmarks" / "result.json")
    # Plots of an earlier run that this one has not.
    for old in (output / "benchmarks").glob("*.svg"):
        old.unlink()
    files = generated(result, output)
    if output.resolve() == DOCS:
        files |= derived(result)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


def check():
    """Returns the documents that do not agree with the result file of the documentation."""
    file = DOCS / "benchmarks" / "result.json"
    result = Result.read(file) if file.exists() else None
    files = derived(result) | (generated(result, DOCS) if result else {})
    return [str(path.relative_to(ROOT)) for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def generated(result, output):
    """Returns the page and its plots by path."""
    plots = make_plots(result)
    files = {output / "benchmarks" / f"{name}.svg": text for name, text in plots.items()}
    return files | {output / "benchmarks.md": page(result, plots)}


def derived(result):
    """Returns the documents that take something from the result, by path; without a result, they must have nothing of it."""
    readme, index = ROOT / "README.md", DOCS / "README.md"
    return {readme: with_figures(readme.read_text(encoding="utf-8"), result), index: with_link(index.read_text(encoding="utf-8"), result)}


def page(result, plots):
    picture = lambda name, description: [f"![{description}](benchmarks/{name}.svg)", ""] if name in plots else []
    sections = [
        INTRODUCTION, *run_section(result),
        "## Targets", "", *target_table(result), "",
        "## Lists and creates", "", *contestant_table(result), "",
        *picture("lists", "Lists per second of each server"), *picture("creates", "Creates per second of each server"),
        *picture("list-latency", "Latency of lists by percentile"), *picture("create-latency", "Latency of creates by percentile"),
        "### Variants of a list", "", *variant_table(result), "",
        "## Connections", "", *picture("connections-list", "Lists per second against connections"),
        *picture("connections-create", "Creates per second against connections"),
        "## Size of the store", "", *picture("sizes-list", "Lists per second against plants in the store"),
        *picture("sizes-create", "Creates per second against plants in the store"),
        "## Memory", "", *memory_table(result), "", *picture("memory", "Peak resident memory of each server"),
        "## PostgreSQL", "", *postgresql_table(result), "", *picture("database-cpu", "Database CPU per operation on PostgreSQL"),
        *citus_section(result), *transfer_section(result), *overload_section(result), *micro_section(result), *instructions_section(result),
    ]
    return "\n".join(sections).rstrip() + "\n"


def run_section(result):
    facts, settings, machine = result.facts, result.facts["settings"], result.facts["machine"]
    kind = "a quick run" if facts["quick"] else "a full run"
    rows = [
        ("plantstore", facts["version"]),
        ("run", f"{kind}, {facts['started'][:10]}, {facts['seconds'] / 60:.0f} minutes, parts: {', '.join(facts['parts'])}"),
        ("machine", f"{machine['cores']} cores, {machine['cpu']}, {machine['memory_mb'] / 1024:.0f} GiB of memory, {machine['kernel']}"),
        ("steal", f"{machine['steal_percent']:.1f} % of the CPU time went to other guests of the host"),
        ("load", f"wrk with {facts['wrk_threads']} thread(s), 64 connections, loopback"),
        ("rounds", f"{settings['rounds']} of {settings['seconds']} s each, in turns; {settings['curve_rounds']} for connections, sizes and transfers"),
        ("store", f"{max(settings['sizes']):,} plants of {settings['users']:,} users"),
    ]
    note = "The load generator, the servers and the databases share the cores, so that figures are comparable only within this page."
    return [*table(("", ""), rows), "", note, ""]


def target_table(result):
    rows = []
    for target in result.facts["targets"]:
        measured = f"{number(target['median'])}{target['unit']}" if "median" in target else ""
        spread = f"{number(min(target['rounds']))} to {number(max(target['rounds']))}" if "median" in target else ""
        rows.append((target["name"], target["bound"], measured, spread, VERDICTS[target["verdict"]]))
    return table(("figure", "target", "median", "rounds", ""), rows)


def target_line(target):
    return f"{VERDICTS[target['verdict']]}: {target['name']} {target['bound']}: {number(target['median'])} (spread {number(target['spread'])})"


def contestant_table(result):
    rows = []
    for name in ORDER:
        facts = result.facts["contestants"].get(name)
        if facts is None:
            continue
        title = " ".join(filter(None, (facts["title"], facts["version"])))
        if "failure" in facts:
            rows.append((title, f"not measured: {facts['failure']}", "", "", "", "", facts["durability"], facts["authentication"]))
            continue
        lists, creates = result.figure(list_id(name)), result.figure(create_id(name))
        plants = f"{facts['plants']:,}" if facts["plants"] else "none"
        both = lambda field: " / ".join(figure_text(result.figure(measured, field)) for measured in (list_id(name), create_id(name)))
        rows.append((title, with_spread(lists), with_spread(creates), both("p99"), both("cpu_us"), plants, facts["durability"], facts["authentication"]))
    latency, cpu = "p99 of lists / creates, ms", "CPU time of a list / create, µs"
    header = ("", "lists of 20 per second", "creates per second", latency, cpu, "plants stored", "durability of a create", "authentication")
    return table(header, rows) if rows else ["Not measured."]


def variant_table(result):
    names = ("plantstore/list", "plantstore/list, no log", "plantstore/list, 304", "plantstore/list, other users", "plantstore/list, no cache", "bare/list, same duties", "bare/list")
    titles = ("unchanged list of one user", "the same, access log off", "304 on a matching `ETag`", "another user each time", "the same, no list cache", "bare server with the same duties", "bare server")
    ratios = lambda name: [figure_text(result.ratio(name, other)) for other in ("bare/list, same duties", "bare/list")]
    rows = [(title, with_spread(result.figure(name)), figure_text(result.figure(name, "cpu_us")), *ratios(name)) for title, name in zip(titles, names) if result.has(name)]
    return table(("list of 20", "per second", "CPU time, µs", "÷ bare with the same duties", "÷ bare"), rows) if rows else ["Not measured."]


def memory_table(result):
    rows = [(title_of(result, name), figure_text(result.figure(f"{name}/memory", "peak_mb"))) for name in ORDER if result.has(f"{name}/memory", "peak_mb")]
    return table(("", "peak resident memory under load, MB"), rows) if rows else ["Not measured."]


def postgresql_table(result):
    names = {"postgresql/create": "creates over one node", "postgresql/create, two nodes": "creates over two nodes", "pgbench/insert": "single-row inserts of pgbench",
             "postgresql/list": "lists of 20 over one node", "pgbench/select": "the same select by pgbench"}
    cells = lambda name: (with_spread(result.figure(name)), with_spread(result.figure(name, "database_us")), figure_text(result.figure(name, "cpu_us")))
    rows = [(title, *cells(name)) for name, title in names.items() if result.has(name)]
    header = ("", "per second", "database CPU per operation, µs", "CPU of the node, µs")
    if not rows:
        return ["Not measured."]
    note = f"PostgreSQL {result.facts['postgresql']}, pgbench with {result.facts['pgbench_clients']} clients and prepared statements."
    return [note, "", *table(header, rows)]


def citus_section(result):
    if "citus" not in result.facts:
        return []
    rows = []
    for title, name in citus.CASES:
        # The load of each server is the same as that of one with 64 connections.
        plain = f"citus, plain PostgreSQL/{name.removesuffix(', per server')}"
        for database in result.facts["citus_databases"]:
            measured = f"citus, {database}/{name}"
            if result.has(measured):
                ratio = "" if measured == plain else figure_text(result.ratio(measured, plain, "database_us"))
                rows.append((title, database, with_spread(result.figure(measured)), with_spread(result.figure(measured, "database_us")), figure_text(result.figure(measured, "coordinator_us")), ratio))
    header = ("", "database", "per second", "CPU of all database servers per operation, µs", "of it the coordinator", "÷ plain PostgreSQL")
    about = f"Citus {result.facts['citus']}, all servers on one machine, one node, {citus.USERS} users; run on {result.facts['citus_date']}."
    return ["## Citus", "", about, "", *table(header, rows), "", *commit_costs(result)]


def commit_costs(result):
    """Returns the table of the CPU time of a commit and of the number of creates that share it."""
    rows = []
    for title, name in citus.CASES:
        for database in result.facts["citus_databases"]:
            measured = f"citus, {database}/{name}"
            if result.has(measured, "batch"):
                batch, create = (result.figure(measured, field).median for field in ("batch", "database_us"))
                rows.append((title, database, *map(number, (batch, create, batch * create))))
    header = ("", "database", "creates in a commit", "CPU of all database servers per create, µs", "per commit, µs")
    return [*table(header, rows), ""] if rows else []


def transfer_section(result):
    prefix = "plantstore/"
    names = [name for name in result.facts["measurements"] if any(word in name for word in ("import", "export", "copy", "backup", "restore"))]
    if not names:
        return []
    rows = [(name.removeprefix(prefix), with_spread(result.figure(name))) for name in names]
    return ["## Import and export", "", *table((f"{result.facts['settings']['transferred']:,} plants", "plants per second"), rows), ""]


def overload_section(result):
    lines = result.facts.get("overload")
    note = [
        "*Of peak*: the share of the peak, which 64 connections reach in a closed loop right before. *Of carried*: the share of the most",
        "that the 4,000 connections of the open loop have carried when no more than the peak was offered.",
    ]
    return ["## Overload", "", *note, "", *lines, ""] if lines else []


def micro_section(result):
    rows = [(title, with_spread(result.figure(f"micro/{case}", "us"))) for case, title in micro.CASES.items() if result.has(f"micro/{case}", "us")]
    return ["## Single steps", "", *table(("without HTTP, on an embedded store", "µs"), rows), ""] if rows else []


def instructions_section(result):
    figures = ((title, result.figure(f"instructions/{case}", "instructions")) for case, title in instructions.CASES.items())
    rows = [(title, f"{figure.median:,.0f}") for title, figure in figures if figure]
    return ["## Instructions", "", *table(("on an embedded store, counted by callgrind", "user instructions"), rows), ""] if rows else []


def make_plots(result):
    """Returns the plots for which there are measurements, by file name."""
    plots = {}
    for operation, measured in (("list", list_id), ("create", create_id)):
        plural = f"{operation}s"
        values = [(title_of(result, name), result.figure(measured(name)).median) for name in ORDER if result.has(measured(name))]
        if values:
            plots[plural] = plot.bars(f"{plural.capitalize()} per second", values)
        latencies = [latency_series(result, name, measured(name)) for name in ORDER if result.has(measured(name), "p99.9")]
        if latencies:
            plots[f"{operation}-latency"] = plot.lines(f"Latency of {plural}, ms", "percentile", latencies, categories=LATENCIES, log_y=True)
        curves = [("connections", "connections", ("plantstore", "bare")), ("sizes", "plants", ("plantstore",))]
        for setting, label, names in curves:
            series = [curve(result, name, operation, setting, label) for name in names]
            series = [entry for entry in series if len(entry.points) > 1]
            if series:
                x_title = "connections" if label == "connections" else "plants in the store"
                plots[f"{setting}-{operation}"] = plot.lines(f"{plural.capitalize()} per second", x_title, series, log_x=True)
    memory = [(f"{title_of(result, name)}, MB", result.figure(f"{name}/memory", "peak_mb").median) for name in ORDER if result.has(f"{name}/memory", "peak_mb")]
    if memory:
        plots["memory"] = plot.bars("Peak resident memory", memory)
    names = {"postgresql/create": "create", "pgbench/insert": "pgbench: single-row insert", "postgresql/list": "list of 20", "pgbench/select": "pgbench: the same select"}
    cpu = [(title, result.figure(name, "database_us").median) for name, title in names.items() if result.has(name, "database_us")]
    if cpu:
        plots["database-cpu"] = plot.bars("Database CPU per operation, µs", cpu)
    return plots


def latency_series(result, name, measured):
    points = tuple((float(index), max(0.001, result.figure(measured, field).median)) for index, field in enumerate(LATENCIES))
    return plot.Series(title_of(result, name), points)


def curve(result, name, operation, setting, label):
    measured = {value: result.figure(f"{name}/{operation}/{label}={value}") for value in result.facts["settings"][setting]}
    return plot.Series(title_of(result, name), tuple((float(value), figure.median) for value, figure in measured.items() if figure))


def with_figures(readme, result):
    """Returns the README with rows of figures at the end of its comparison; without a result, the rows are removed."""
    before, heading, rest = readme.partition("## Comparison\n")
    if not heading:
        raise ValueError("the README has no section Comparison")
    section, next_heading, after = rest.partition("\n## ")
    lines = [line for line in section.split("\n") if not line.startswith(tuple(f"| {title} |" for title in README_ROWS))]
    rows = [index for index, line in enumerate(lines) if line.startswith("|")]
    header = [cell.strip() for cell in lines[rows[0]].strip("|").split("|")]
    if result is not None:
        lines[rows[-1] + 1 : rows[-1] + 1] = readme_rows(result, header[1:])
    return before + heading + "\n".join(lines) + next_heading + after


def with_link(index, result):
    """Returns the index of the documents with a link to the page at the end of the reference, if there is a result."""
    index = index.replace(INDEX_LINE, "")
    before, heading, rest = index.partition("\n## Reference")
    section, end, after = rest.partition("\n\n## ")
    return before + heading + section + ("\n" + INDEX_LINE.rstrip("\n") if result else "") + end + after


INDEX_LINE = "- [Benchmarks](benchmarks.md): throughput, latency and memory, beside other servers\n"


def list_id(name):
    return LISTS.get(name, f"{name}/list")


def create_id(name):
    return f"{name}/create"


README_ROWS = {"lists of 20 per second": list_id, "creates per second": create_id}


def readme_rows(result, columns):
    rows = []
    for title, measured in README_ROWS.items():
        figures = [result.figure(measured(name.lower())) for name in columns]
        cells = [f"{two_digits(figure.median):,}" if figure else "not measured" for figure in figures]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return rows


def two_digits(value):
    """Rounds to two significant digits, which is what the spread of a machine allows."""
    return int(float(f"{value:.2g}"))


def title_of(result, name):
    return result.facts["contestants"].get(name, {}).get("title", name)


def figure_text(figure):
    return number(figure.median) if figure else ""


def with_spread(figure):
    if figure is None:
        return ""
    median, low, high = (number(value) for value in (figure.median, min(figure.rounds), max(figure.rounds)))
    return f"{median} ({low} to {high})" if len(figure.rounds) > 1 else median


def number(value):
    """Formats a figure with three significant digits."""
    value = rounded(float(f"{value:.3g}"))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def table(header, rows):
    line = lambda cells: f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
    return [line(header), line(["---"] * len(header)), *map(line, rows)]
