//! Everything beside what it is compared with, in turns, in one run: the figures of `docs/performance.md`.

mod figure;
mod rows;

use std::process::ExitCode;

use serde::Serialize;

use super::arguments::{OWN_DEVICE, PARTNER_DEVICE, TableFlags};
use super::channel::check_interrupted;
use super::end::Device;
use super::job::{Amount, Assignment, Job, Measure, Operation};
use super::machine::{Description, place};
use super::outcome::{Failure, Outcome};
use super::partner::Partner;
use super::plot::Picture;
use super::progress::Progress;
use super::reference::Role;
use super::report::{Line, Report};
use super::run::{perform, refer};
use super::{compare, plot};
use figure::{Bound, Figure, median};
use rows::{Row, Task};

/// Sizes of the picture: to half a megabyte and more, so that all of its curves fit the time of a table.
const PICTURE_SIZES: [usize; 11] = [8, 32, 128, 512, 2048, 4096, 8192, 32_768, 131_072, 524_288, 1 << 20];
const PICTURE_BYTES: u64 = 256 << 20;

/// What a row's task, or one that it is compared with, gave in each repetition.
#[derive(Serialize)]
struct Measurements {
    name: String,
    lines: Vec<Line>,
}

/// A row when it is done.
#[derive(Serialize)]
struct Finished {
    row: &'static str,
    ours: Measurements,
    others: Vec<Measurements>,
    verdicts: Vec<Verdict>,
}

/// One figure of a row.
#[derive(Serialize)]
struct Verdict {
    figure: &'static str,
    unit: &'static str,
    /// Medians.
    ours: f64,
    other: f64,
    compared_with: String,
    ratio: f64,
    /// Of the repetitions by themselves: the noise.
    least_ratio: f64,
    most_ratio: f64,
    target: Option<Bound>,
    is_met: Option<bool>,
}

#[derive(Serialize)]
struct Table {
    machine: Description,
    repetitions: u32,
    rows: Vec<Finished>,
    /// Rows that could not be measured, and why.
    failed: Vec<(&'static str, String)>,
}

/// Measures all rows.
pub(crate) fn run(flags: &TableFlags) -> Outcome<ExitCode> {
    let rows = chosen(flags)?;
    if let Some(file) = &flags.plot {
        plot::prepare(file)?;
    }
    let table = measure_all(&rows, flags)?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&table).map_err(|error| format!("no JSON: {error}"))?);
    }
    if let Some(file) = &flags.plot {
        plot::draw(file, &picture(flags.brief)?)?;
    }
    if !table.failed.is_empty() {
        return Err(format!("{} of {} rows could not be measured", table.failed.len(), rows.len()).into());
    }
    let is_below = table.rows.iter().flat_map(|row| &row.verdicts).any(|verdict| verdict.is_met == Some(false));
    Ok(if flags.strict && is_below { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The rows that are asked for.
fn chosen(flags: &TableFlags) -> Outcome<Vec<Row>> {
    let part = flags.only.as_deref().unwrap_or_default().to_lowercase();
    let mut rows = rows::all(if flags.brief { 100 } else { 1 });
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    rows.retain(|row| row.name.to_lowercase().contains(&part));
    if rows.is_empty() {
        let message = format!("--only: no row's name contains that; there are:\n  {}", names.join("\n  "));
        return Err(Failure::Usage(message));
    }
    Ok(rows)
}

fn measure_all(rows: &[Row], flags: &TableFlags) -> Outcome<Table> {
    let machine = Description::now()?;
    if !flags.json {
        print_head(&machine, flags.repetitions);
    }
    let mut table = Table { machine, repetitions: flags.repetitions, rows: Vec::new(), failed: Vec::new() };
    let progress = Progress::of_parts(rows.len() as u64);
    for (number, row) in rows.iter().enumerate() {
        progress.note(number as u64);
        match measure(row, flags.repetitions) {
            Ok(finished) => {
                if !flags.json {
                    progress.suspend(|| print_row(&finished));
                }
                table.rows.push(finished);
            }
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            Err(failure) => {
                eprintln!("perf: {}: {failure}", row.name);
                table.failed.push((row.name, failure.to_string()));
            }
        }
    }
    Ok(table)
}

/// All tasks of a row, in turns, each repetition between two processes that are there for this row only.
fn measure(row: &Row, repetitions: u32) -> Outcome<Finished> {
    let mut partner = Partner::start()?;
    let mut lines: Vec<Vec<Line>> = vec![Vec::new(); 1 + row.others.len()];
    for repetition in 0..repetitions as usize {
        let tasks: Vec<&Task> = std::iter::once(&row.ours).chain(row.others.iter().map(|(_, task)| task)).collect();
        // Each has its turn to be the first.
        for turn in 0..tasks.len() {
            check_interrupted()?;
            let place = (turn + repetition) % tasks.len();
            lines[place].push(perform_task(tasks[place], row, &mut partner)?);
        }
    }
    partner.channel.say(&Assignment::End)?;
    partner.end()?;
    let mut lines = lines.into_iter();
    let ours = Measurements { name: "rdma-verbs".to_owned(), lines: lines.next().unwrap_or_default() };
    let named = row.others.iter().zip(lines);
    let others: Vec<_> = named.map(|((name, _), lines)| Measurements { name: (*name).to_owned(), lines }).collect();
    let verdicts = row.figures.iter().map(|(figure, bound)| judge(*figure, *bound, &ours, &others)).collect();
    Ok(Finished { row: row.name, ours, others, verdicts })
}

fn perform_task(task: &Task, row: &Row, partner: &mut Partner) -> Outcome<Line> {
    let placement = row.placement;
    place(Role::Client, placement)?;
    match task {
        Task::Verbs(job) => {
            let device = PARTNER_DEVICE.to_owned();
            partner.channel.say(&Assignment::Verbs { job: (**job).clone(), placement, device })?;
            // Opened anew, so that its threads run where this task shall.
            let device = Device::open(Some(OWN_DEVICE), 1, None)?;
            perform(job, job.largest(), &device, Role::Client, &mut partner.channel, &Progress::none())
        }
        Task::Reference(reference) => {
            partner.channel.say(&Assignment::Reference { reference: *reference, placement })?;
            refer(reference, None, Role::Client, &mut partner.channel)
        }
    }
}

/// Compares with the best of the others.
fn judge(figure: Figure, target: Option<Bound>, ours: &Measurements, others: &[Measurements]) -> Verdict {
    let values =
        |measurements: &Measurements| -> Vec<f64> { measurements.lines.iter().map(|line| figure.of(line)).collect() };
    let own = values(ours);
    let best = others
        .iter()
        .map(|other| (other, values(other)))
        .reduce(|one, two| if figure.is_better(median(&two.1), median(&one.1)) { two } else { one });
    let (name, other) = best.map_or_else(Default::default, |(other, values)| (other.name.clone(), values));
    let ratios: Vec<f64> = own.iter().zip(&other).map(|(own, other)| own / other).collect();
    let ratio = median(&own) / median(&other);
    Verdict {
        figure: figure.name(),
        unit: figure.unit(),
        ours: median(&own),
        other: median(&other),
        compared_with: name,
        ratio,
        least_ratio: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        most_ratio: ratios.iter().copied().fold(0.0, f64::max),
        target,
        is_met: target.map(|target| target.holds(ratio)),
    }
}

fn print_head(machine: &Description, repetitions: u32) {
    let Description { processor, cores, kernel, receive_buffer_limit, load, .. } = machine;
    println!("{processor}, {cores} core(s), Linux {kernel}, rmem_max {receive_buffer_limit}, load {load}");
    println!("Medians of {repetitions} repetitions in turns; in brackets the ratios of single repetitions.");
    if !machine.optimised {
        println!("This is a debug build: the figures mean nothing.");
    }
    println!(
        "{:<44} {:>10} {:>10} {:<6} {:>6}  {:<15} {:<8} {:<6} compared with",
        "", "ours", "other", "", "ratio", "", "target", ""
    );
}

fn print_row(finished: &Finished) {
    for verdict in &finished.verdicts {
        let Verdict { figure, unit, ours, other, compared_with, ratio, least_ratio, most_ratio, .. } = verdict;
        let name = format!("{} {figure}", finished.row);
        let target = verdict.target.map(|target| target.to_string()).unwrap_or_default();
        let mark = match verdict.is_met {
            Some(true) => "pass",
            Some(false) => "BELOW",
            None => "",
        };
        let spread = format!("({least_ratio:.2}-{most_ratio:.2})");
        println!(
            "{name:<44} {ours:>10.3} {other:>10.3} {unit:<6} {ratio:>6.2}  {spread:<15} {target:<8} {mark:<6} \
             {compared_with}"
        );
    }
}

/// Latency and bandwidth against size, and how the smallest size's latency is distributed.
fn picture(is_brief: bool) -> Outcome<Picture> {
    let mut picture = Picture::default();
    let iterations = if is_brief { 200 } else { 20_000 };
    for (operation, measure) in [(Operation::Send, Measure::Latency), (Operation::Write, Measure::Bandwidth)] {
        let job = Job {
            sizes: PICTURE_SIZES.to_vec(),
            amount: Amount::Iterations(iterations),
            byte_limit: if is_brief { 1 << 20 } else { PICTURE_BYTES },
            ..Job::new(operation, measure, 0)
        };
        let mut report = Report::new(&job, true)?;
        let mut partner = Partner::start()?;
        for size in PICTURE_SIZES {
            let job = Job { sizes: vec![size], ..job.clone() };
            let row = Row::picture(Task::Verbs(Box::new(job)));
            report.add(perform_task(&row.ours, &row, &mut partner)?);
        }
        for (name, reference, size) in compare::references(&job) {
            let row = Row::picture(Task::Reference(reference));
            let line = perform_task(&row.ours, &row, &mut partner)?;
            report.add_reference(name, line.of_size(size));
        }
        partner.channel.say(&Assignment::End)?;
        partner.end()?;
        report.draw_into(&mut picture);
    }
    Ok(picture)
}
