//! `messina inspect`: looks into sstables without a node.

use crate::Failure;
use clap::{Arg, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use sstable::{PageCache, Place, Sstable};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes of pages that are kept while a file is read from front to back.
const CACHE: usize = 8 << 20;

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
    Command::new("inspect")
        .about("Looks into sstables")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("dump").about("Prints sstables as JSON").arg(files()))
        .subcommand(Command::new("verify").about("Checks every byte of sstables").arg(files()))
}

/// Runs one of the commands.
pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let Some((name, arguments)) = arguments.subcommand() else { return Ok(()) };
    let files: Vec<PathBuf> = arguments.get_many::<PathBuf>("files").into_iter().flatten().cloned().collect();
    rt::block_on(async {
        match name {
            "dump" => dump(&files).await,
            _ => verify(&files).await,
        }
    })
}

async fn open(file: &Path) -> Result<Rc<Sstable>, Failure> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((place, _)) = Place::parse_name(dir, &name) else {
        return Err(Failure(format!("{} is not named like a file of an sstable", file.display())));
    };
    Ok(Sstable::open_at(&place, &PageCache::new(CACHE)).await?)
}

async fn dump(files: &[PathBuf]) -> Result<(), Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    // What expires does so at the clock that 32 bits can show.
    let now = i32::try_from(rt::time::wall_seconds()).unwrap_or(i32::MAX);
    for file in files {
        let table = open(file).await?;
        sstable::dump::dump_json(&table, now, &mut out).await?;
    }
    Ok(out.flush()?)
}

async fn verify(files: &[PathBuf]) -> Result<(), Failure> {
    let mut damaged = 0;
    for file in files {
        match verify_one(file).await {
            Ok(()) => println!("{}: sound", file.display()),
            Err(Failure(why)) => {
                damaged += 1;
                println!("{}: {why}", file.display());
            }
        }
    }
    match damaged {
        0 => Ok(()),
        _ => Err(Failure(format!("{damaged} of {} sstables cannot be trusted", files.len()))),
    }
}

async fn verify_one(file: &Path) -> Result<(), Failure> {
    let table = open(file).await?;
    // Draws on a terminal only.
    let bar = ProgressBar::new(table.content_bytes());
    bar.set_style(ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}")?);
    let outcome = table.verify(|done| bar.set_position(done)).await;
    bar.finish_and_clear();
    Ok(outcome?)
}
