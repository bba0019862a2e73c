//! The query processor end to end, in one process: text files of statements with their answers.
//!
//! A case file consists of blocks separated by blank lines: a statement of one or more lines, then
//! its answer. The answer is a line `ok`, a line `| ...` for each row (`| no rows` for none), or
//! `!! code message` for an error, with a line `# warning` for each warning. Lines that start with
//! `--` are comments.
//!
//! With `UPDATE_CASES=1` in the environment, the answers are written again: check the difference.
//! Each file uses its own keyspace `ks`.

use crate::support::{Session, show_rows, with_node};
use cql::{Error, ResultKind};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

async fn answer(session: &Session, statement: &str) -> String {
    let mut out = String::new();
    match session.query(statement).await {
        Err(error @ Error::Syntax(_)) => {
            let _ = writeln!(out, "!! syntax {error}");
        }
        Err(error) => {
            let _ = writeln!(out, "!! {:04x} {error}", error.code());
        }
        Ok(answer) => {
            match &answer.kind {
                ResultKind::Rows(rows) if rows.count == 0 => {
                    let names: Vec<&str> = rows.metadata.columns.iter().map(|column| column.name.as_str()).collect();
                    let _ = writeln!(out, "| no rows of {}", names.join(", "));
                }
                ResultKind::Rows(rows) => show_rows(rows).iter().for_each(|row| {
                    let _ = writeln!(out, "| {row}");
                }),
                _ => out.push_str("ok\n"),
            }
            for warning in &answer.warnings {
                let _ = writeln!(out, "# {warning}");
            }
        }
    }
    out
}

async fn replay(session: &Session, text: &str) -> String {
    let mut replayed = String::new();
    for block in text.split("\n\n") {
        let block = block.trim_matches('\n');
        let is_answer = |line: &&str| ["ok", "| ", "!! ", "# "].iter().any(|start| line.starts_with(start));
        let statement: Vec<&str> = block.lines().filter(|line| !is_answer(line)).collect();
        let bare: Vec<&str> = statement.iter().copied().filter(|line| !line.starts_with("--")).collect();
        for line in &statement {
            let _ = writeln!(replayed, "{line}");
        }
        if !bare.is_empty() {
            replayed.push_str(&answer(session, &bare.join("\n")).await);
        }
        replayed.push('\n');
    }
    format!("{}\n", replayed.trim_end_matches('\n'))
}

fn check(name: &str) {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(format!("{name}.cql"));
    let recorded = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    with_node(name, |session| async move {
        session.use_keyspace("ks").await;
        let replayed = replay(&session, &recorded).await;
        if std::env::var_os("UPDATE_CASES").is_some() {
            std::fs::write(&file, replayed).expect("the case file can be written");
            return;
        }
        for (number, (was, is)) in recorded.lines().zip(replayed.lines()).enumerate() {
            assert_eq!(was, is, "{}:{}", file.display(), number + 1);
        }
        assert_eq!(recorded, replayed, "{}", file.display());
    });
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        #[test]
        fn every_case_file_is_run() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
            let mut files: Vec<String> = std::fs::read_dir(&folder)
                .expect("there are case files")
                .map(|entry| entry.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned())
                .collect();
            files.sort();
            let mut run = vec![$(stringify!($name).to_string()),*];
            run.sort();
            assert_eq!(files, run);
        }
    };
}

cases!(
    basics,
    restrictions,
    collections,
    types,
    functions,
    writes,
    selects,
    filtering,
    counters,
    guardrails,
    json,
    groups,
    natives,
    cell_times,
    values,
    tuples,
    ddl,
    statics,
    batches,
    relations
);
