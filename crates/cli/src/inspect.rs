//! `messina inspect`: shows sstables without a node.
//!
//! It only reads, so it can also be used on the files of a running node. Anything that is invalid
//! in an sstable is an error. If damage is found, the exit status is a failure.

mod contents;
mod metadata;
mod render;

use crate::Failure;
use crate::output::Output;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use sstable::{PageCache, Sstable, SstablePath, Verified};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The size of the page cache for reading a file sequentially, in bytes.
const CACHE: usize = 8 << 20;
/// The bytes of content from which progress is shown.
const LARGE: u64 = 4 << 20;

/// The command.
pub fn command() -> Command {
    let files = || {
        Arg::new("files")
            .required(true)
            .num_args(1..)
            .value_name("FILE-Data.db")
            .value_parser(value_parser!(PathBuf))
            .help("Sstables, by any of their files")
    };
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).global(true).help("Prints JSON");
    Command::new("inspect")
        .about("Shows sstables, without a running node")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(json())
        .subcommand(Command::new("dump").about("Prints the rows, always as JSON, as sstabledump -t does").arg(files()))
        .subcommand(Command::new("verify").about("Checks every byte of sstables").arg(files()))
        .subcommand(
            Command::new("metadata").about("Prints statistics, and the schema at the time of writing").arg(files()),
        )
        .subcommand(
            Command::new("index")
                .about("Prints the positions of partitions, and of blocks of large partitions")
                .arg(files()),
        )
        .subcommand(Command::new("summary").about("Prints the sample of the index that is held in memory").arg(files()))
}

/// Runs one of these commands.
pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let Some((name, arguments)) = arguments.subcommand() else { return Ok(()) };
    let files: Vec<PathBuf> = arguments.get_many::<PathBuf>("files").into_iter().flatten().cloned().collect();
    let json = arguments.get_flag("json");
    let mut out = BufWriter::new(if name == "verify" { Output::dropping() } else { Output::ending() });
    let outcome = rt::block_on(async {
        match name {
            "dump" => dump(&files, &mut out).await,
            "verify" => verify(&files, json, &mut out).await,
            "metadata" => metadata::print(&files, json, &mut out).await,
            "index" => contents::index(&files, json, &mut out).await,
            _ => contents::summary(&files, json, &mut out).await,
        }
    });
    // Results before an error are printed too.
    let flushed = out.flush();
    outcome?;
    Ok(flushed?)
}

async fn open(file: &Path) -> Result<Rc<Sstable>, Failure> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some(format) = sstable::unreadable_format(&name) {
        return Err(Failure::new(format!("{}: unsupported format {format}", file.display())));
    }
    let Some((place, _)) = SstablePath::parse_name(dir, &name) else {
        return Err(Failure::new(format!("{} is not named like a file of an sstable", file.display())));
    };
    Ok(Sstable::open_at(&place, &PageCache::new(CACHE)).await?)
}

/// A progress bar for a large sstable. Hidden if the terminal shows output at the same time.
fn progress_bar(table: &Sstable, shows_output: bool) -> Result<ProgressBar, Failure> {
    let bar = ProgressBar::new(table.content_bytes());
    if table.content_bytes() < LARGE || (shows_output && std::io::stdout().is_terminal()) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")?);
    Ok(bar)
}

async fn dump(files: &[PathBuf], out: &mut impl Write) -> Result<(), Failure> {
    // The clock decides expiry, up to the largest time in 32 bits.
    let now = i32::try_from(rt::time::wall_seconds()).unwrap_or(i32::MAX);
    for file in files {
        let table = open(file).await?;
        let bar = progress_bar(&table, true)?;
        let outcome = sstable::dump::dump_json(&table, now, out, |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        outcome?;
    }
    Ok(())
}

async fn verify(files: &[PathBuf], json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let mut damaged = 0;
    for file in files {
        let outcome = verify_one(file).await;
        damaged += outcome.is_err() as usize;
        let name = file.display();
        match (outcome, json) {
            (Ok(found), false) => {
                let Verified { partitions, rows, markers, all_protected } = found;
                let protected = match all_protected {
                    true => "",
                    false => "; only Data.db has checksums",
                };
                writeln!(
                    out,
                    "{name}: sound: {partitions} partitions, {rows} rows, {markers} range tombstone markers{protected}"
                )?;
            }
            (Err(Failure { why, .. }), false) => writeln!(out, "{name}: {why}")?,
            (Ok(found), true) => {
                let Verified { partitions, rows, markers, all_protected } = found;
                let line = json!({
                    "file": name.to_string(),
                    "sound": true,
                    "partitions": partitions,
                    "rows": rows,
                    "range_tombstone_markers": markers,
                    "all_components_have_checksums": all_protected,
                });
                writeln!(out, "{line}")?;
            }
            (Err(Failure { why, .. }), true) => {
                writeln!(out, "{}", json!({ "file": name.to_string(), "sound": false, "error": why }))?;
            }
        }
        out.flush()?;
    }
    match damaged {
        0 => Ok(()),
        _ => Err(Failure::new(format!("{damaged} of {} sstables cannot be trusted", files.len()))),
    }
}

async fn verify_one(file: &Path) -> Result<Verified, Failure> {
    let table = open(file).await?;
    let bar = progress_bar(&table, false)?;
    let outcome = table.verify(|done| bar.set_position(done)).await;
    bar.finish_and_clear();
    Ok(outcome?)
}
