//! `messina admin tablets --watch`: the tablets that are moving, until no tablet is moving.

use crate::Failure;
use crate::api::Api;
use crate::nodestatus::size;
use crate::output::plain_text;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rt::time::Duration;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};

/// How often the moves are read.
const LOOK: Duration = Duration::from_millis(500);
/// The number of reads without a move after which the command ends. Fewer are not enough, because
/// other tablets may begin to move when some have moved.
const QUIET_LOOKS: u32 = 4;
/// The stages of a move, in order. A bar advances by stages, and by bytes while the tablet is
/// streamed.
const STAGES: [&str; 7] = [
    "allow_write_both_read_old",
    "write_both_read_old",
    "streaming",
    "write_both_read_new",
    "use_new",
    "cleanup",
    "end_migration",
];
/// The steps of a bar for each stage.
const STEPS: u64 = 100;

/// Shows the moves until there are none.
#[allow(clippy::disallowed_methods, reason = "a command line waits by sleeping")]
pub fn watch(api: &Api, as_json: bool) -> Result<(), Failure> {
    let mut shown = Shown::new(as_json)?;
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        let moves = api.get("/cluster/moves")?;
        let moves = moves.as_array().map(Vec::as_slice).unwrap_or_default();
        quiet = if moves.is_empty() { quiet + 1 } else { 0 };
        shown.update(moves);
        std::thread::sleep(LOOK);
    }
    shown.end();
    Ok(())
}

/// The bar and the last text of each move, by its name.
struct Shown {
    as_json: bool,
    style: ProgressStyle,
    bars: Option<MultiProgress>,
    moves: BTreeMap<String, (ProgressBar, String)>,
    moved: u64,
}

impl Shown {
    fn new(as_json: bool) -> Result<Shown, Failure> {
        let style = ProgressStyle::with_template("{prefix:40} {bar:20} {eta:>4}  {wide_msg}");
        let style = style.map_err(|error| Failure::new(format!("cannot draw a progress bar: {error}")))?;
        let bars = (!as_json && stderr().is_terminal()).then(MultiProgress::new);
        Ok(Shown { as_json, style, bars, moves: BTreeMap::new(), moved: 0 })
    }

    fn update(&mut self, moves: &[Value]) {
        let names: Vec<String> = moves.iter().map(name).collect();
        let (bars, moved) = (&self.bars, &mut self.moved);
        self.moves.retain(|known, (bar, _)| {
            let is_there = names.contains(known);
            if !is_there {
                *moved += 1;
                bar.finish_and_clear();
                if let Some(bars) = bars {
                    bars.remove(bar);
                }
            }
            is_there
        });
        for (name, one) in names.into_iter().zip(moves) {
            let (style, bars) = (&self.style, &self.bars);
            let (bar, last) = self.moves.entry(name.clone()).or_insert_with(|| {
                let bar = ProgressBar::new(STEPS * STAGES.len() as u64).with_style(style.clone()).with_prefix(name);
                let bar = bars.as_ref().map_or_else(ProgressBar::hidden, |bars| bars.add(bar));
                (bar, String::new())
            });
            let text = state(one);
            bar.set_position(steps(one));
            bar.set_message(text.clone());
            if self.bars.is_none() && *last != text {
                match self.as_json {
                    true => say!("{one}"),
                    false => say!("{}: {text}", self::name(one)),
                }
            }
            *last = text;
        }
    }

    fn end(&self) {
        if !self.as_json {
            match self.moved {
                0 => say!("no tablet is moving"),
                moved => say!("{moved} moves have ended, and no tablet is moving"),
            }
        }
    }
}

fn name(one: &Value) -> String {
    let (keyspace, table) = (plain_text(&one["keyspace"]), plain_text(&one["table"]));
    format!("{keyspace}.{table} tablet {}", plain_text(&one["tablet"]))
}

/// Where the replicas go, the stage, and what the move waits for.
fn state(one: &Value) -> String {
    let nodes = |value: &Value| {
        let names = value.as_array().map(Vec::as_slice).unwrap_or_default();
        names.iter().map(plain_text).collect::<Vec<_>>().join(", ")
    };
    let (from, to) = (nodes(&one["from"]), nodes(&one["to"]));
    let way = match (from.is_empty(), to.is_empty()) {
        (true, _) => format!("to {to}"),
        (_, true) => format!("from {from}"),
        _ => format!("{from} -> {to}"),
    };
    let mut text = format!("{way}: {}", plain_text(&one["stage"]));
    if let (Some(done), Some(total)) = (one["bytes"].as_u64(), one["total_bytes"].as_u64()) {
        text.push_str(&format!(", {} of {}", size(done), size(total)));
    }
    if let Some(why) = one["waits_for"].as_str() {
        text.push_str(&format!(" (waits: {why})"));
    }
    text
}

/// How far a move is, in steps.
fn steps(one: &Value) -> u64 {
    let stage = STAGES.iter().position(|stage| one["stage"] == **stage).unwrap_or_default() as u64;
    let streamed = match (one["bytes"].as_u64(), one["total_bytes"].as_u64()) {
        (Some(done), Some(total)) => (done * STEPS).checked_div(total).unwrap_or(STEPS).min(STEPS),
        _ => 0,
    };
    stage * STEPS + streamed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_move_is_shown_with_its_nodes_its_stage_and_what_it_waits_for() {
        let mut one = json!({
            "keyspace": "ks", "table": "t", "tablet": 3, "from": ["a"], "to": ["b"], "stage": "streaming",
            "bytes": 1u64 << 20, "total_bytes": 2u64 << 20, "waits_for": null,
        });
        assert_eq!(name(&one), "ks.t tablet 3");
        assert_eq!(state(&one), "a -> b: streaming, 1.00 MiB of 2.00 MiB");
        assert_eq!(steps(&one), 250);
        one["total_bytes"] = json!(0);
        assert_eq!(steps(&one), 300);
        one["bytes"] = json!(null);
        one["from"] = json!([]);
        one["waits_for"] = json!("node c is down");
        assert_eq!(state(&one), "to b: streaming (waits: node c is down)");
        one["from"] = json!(["a"]);
        one["to"] = json!([]);
        one["stage"] = json!("use_new");
        one["waits_for"] = json!(null);
        assert_eq!((state(&one), steps(&one)), ("from a: use_new".to_owned(), 400));
    }

    #[test]
    fn moves_that_are_no_longer_listed_count_as_ended() {
        let one = json!({ "keyspace": "ks", "table": "t", "tablet": 3, "stage": "streaming" });
        let mut shown = Shown::new(true).unwrap_or_else(|error| panic!("a style: {}", error.why));
        shown.update(std::slice::from_ref(&one));
        assert_eq!((shown.moved, shown.moves.len()), (0, 1));
        shown.update(&[]);
        assert_eq!((shown.moved, shown.moves.len()), (1, 0));
    }
}
