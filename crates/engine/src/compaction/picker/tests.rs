//! Cases for each strategy from text files, and long runs of each strategy against a model of
//! sstables.

use super::*;
use model::options::OptionMap;
use std::collections::BTreeMap;

const HOUR: i64 = 3_600_000_000;

/// `size[/droppable[/days]]`, then any of `:L<level>`, `:<first>..<last>`, `:h<hour>`, `:busy`.
/// Sizes are in MiB.
fn candidate(word: &str) -> Candidate {
    let mut parts = word.split(':');
    let mut numbers = parts.next().expect("a size").split('/').map(|n| n.parse::<f64>().expect("a number"));
    let size = (numbers.next().expect("a size") * 1_048_576.0) as u64;
    let droppable = numbers.next().unwrap_or(0.0);
    let age = Duration::from_secs_f64(numbers.next().unwrap_or(10.0) * 86_400.0);
    let mut own = Candidate { size, droppable, age, level: 0, newest: 0, span: (0, 100), busy: false };
    for part in parts {
        match (part, part.split_once("..")) {
            ("busy", _) => own.busy = true,
            (_, Some((first, last))) => own.span = (first.parse().expect("a token"), last.parse().expect("a token")),
            _ if part.starts_with('L') => own.level = part[1..].parse().expect("a level"),
            _ if part.starts_with('h') => own.newest = part[1..].parse::<i64>().expect("an hour") * HOUR,
            _ => panic!("{part}"),
        }
    }
    own
}

fn shown(picked: Option<&Pick>) -> String {
    let Some(picked) = picked else { return "-".to_string() };
    let inputs: Vec<_> = picked.inputs.iter().map(usize::to_string).collect();
    match picked.split {
        _ if picked.moves => format!("{} moves to {}", inputs.join(" "), picked.level),
        Some(_) => format!("{} to {}", inputs.join(" "), picked.level),
        None => inputs.join(" "),
    }
}

/// Each line has options, candidates, and the expected pick. With `all`: the expected picks of a
/// major compaction.
fn check(class: &str, text: &str) {
    let mut cases = 0;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let Some((given, wanted)) = line.split_once("=>") else { continue };
        let mut map = OptionMap::from([("class".to_string(), class.to_string())]);
        let mut candidates = Vec::new();
        let mut all = false;
        for word in given.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) => drop(map.insert(name.to_string(), value.to_string())),
                None if word == "all" => all = true,
                None => candidates.push(candidate(word)),
            }
        }
        let options = Options::of(&map);
        let found = if all {
            let picks = pick_all(&candidates, &options);
            picks.iter().map(|pick| shown(Some(pick))).collect::<Vec<_>>().join(", ")
        } else {
            shown(pick(&candidates, &options).as_ref())
        };
        assert_eq!(found, wanted.trim(), "{class}, line {}: {line}", number + 1);
        cases += 1;
    }
    assert!(cases > 10, "{class}: {cases} cases");
}

#[test]
fn size_tiered_picks_as_the_file_says() {
    check("SizeTieredCompactionStrategy", include_str!("size_tiered_cases.txt"));
}

#[test]
fn leveled_picks_as_the_file_says() {
    check("LeveledCompactionStrategy", include_str!("leveled_cases.txt"));
}

#[test]
fn time_window_picks_as_the_file_says() {
    check("TimeWindowCompactionStrategy", include_str!("time_window_cases.txt"));
}

/// An sstable of the model: its keys, each with the time of its write, one byte each.
struct Model {
    keys: BTreeMap<i64, i64>,
    newest: i64,
    level: u32,
    number: u64,
}

/// A tablet of the model. After each flush it is compacted until there is nothing left to do.
struct Run {
    options: Options,
    sstables: Vec<Model>,
    numbers: u64,
    written: u64,
    rewritten: u64,
    moved: u64,
    largest_backlog: f64,
}

impl Run {
    fn new(options: &[(&str, &str)]) -> Run {
        let map = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Run {
            options: Options::of(&map),
            sstables: Vec::new(),
            numbers: 0,
            written: 0,
            rewritten: 0,
            moved: 0,
            largest_backlog: 0.0,
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let of = |own: &Model| Candidate {
            size: own.keys.len() as u64,
            droppable: 0.0,
            age: Duration::from_secs(self.numbers - own.number),
            level: own.level,
            newest: own.newest,
            span: (*own.keys.keys().next().unwrap_or(&0), *own.keys.keys().next_back().unwrap_or(&0)),
            busy: false,
        };
        self.sstables.iter().map(of).collect()
    }

    fn flush(&mut self, keys: BTreeMap<i64, i64>) {
        self.written += keys.len() as u64;
        self.add(keys, 0);
        self.largest_backlog = self.largest_backlog.max(backlog(&self.candidates(), &self.options));
        let mut steps = 0;
        while let Some(picked) = pick(&self.candidates(), &self.options) {
            self.merge(&picked);
            steps += 1;
            assert!(steps < 1000, "compaction comes to an end");
        }
    }

    fn add(&mut self, keys: BTreeMap<i64, i64>, level: u32) {
        self.numbers += 1;
        let newest = keys.values().copied().max().unwrap_or(0);
        self.sstables.push(Model { keys, newest, level, number: self.numbers });
    }

    fn merge(&mut self, picked: &Pick) {
        assert!(picked.inputs.is_sorted() && !picked.inputs.is_empty());
        if picked.moves {
            assert_eq!(picked.inputs.len(), 1);
            self.moved += 1;
            let own = self.sstables.remove(picked.inputs[0]);
            return self.add(own.keys, picked.level);
        }
        let mut merged: BTreeMap<i64, i64> = BTreeMap::new();
        for i in picked.inputs.iter().rev() {
            for (key, time) in self.sstables.remove(*i).keys {
                let kept = merged.entry(key).or_insert(time);
                *kept = time.max(*kept);
            }
        }
        self.rewritten += merged.len() as u64;
        let split = picked.split.map_or(usize::MAX, |bytes| bytes as usize);
        let mut part = BTreeMap::new();
        for (key, time) in merged {
            part.insert(key, time);
            if part.len() >= split {
                self.add(std::mem::take(&mut part), picked.level);
            }
        }
        if !part.is_empty() {
            self.add(part, picked.level);
        }
    }

    fn amplification(&self) -> f64 {
        (self.written + self.rewritten) as f64 / self.written as f64
    }
}

/// Distinct keys in random order.
fn spread(n: i64) -> i64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15u64 as i64)
}

#[test]
fn a_steady_stream_of_flushes_stays_in_few_tiers() {
    let mut run = Run::new(&[("min_sstable_size", "0")]);
    for flush in 0..300 {
        run.flush((0..100).map(|i| (spread(flush * 100 + i), flush)).collect());
    }
    assert!(run.sstables.len() < 30, "{} sstables", run.sstables.len());
    assert!(run.amplification() < 8.0, "written {:.1} times over", run.amplification());
    assert!(run.largest_backlog > 0.0 && run.largest_backlog < 30_000.0 * 6.0);
}

#[test]
fn levels_stay_apart_and_each_key_is_in_few_sstables() {
    // Sstables of 1000 bytes.
    let size = (1000.0 / 1_048_576.0).to_string();
    let mut run =
        Run::new(&[("class", "LeveledCompactionStrategy"), ("sstable_size_in_mb", &size), ("fanout_size", "4")]);
    for flush in 0..300 {
        run.flush((0..100).map(|i| (spread((flush * 100 + i) % 20_000), flush)).collect());
        let candidates = run.candidates();
        for level in 1..9 {
            let mut spans: Vec<_> = candidates.iter().filter(|own| own.level == level).map(|own| own.span).collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "level {level} overlaps");
            let bytes: u64 = candidates.iter().filter(|own| own.level == level).map(|own| own.size).sum();
            assert!(bytes <= 1000 * 4u64.pow(level) * 1001 / 1000 + 1000, "level {level} holds {bytes}");
        }
        assert!(candidates.iter().filter(|own| own.level == 0).count() < 16);
    }
    assert!(run.candidates().iter().all(|own| own.size <= 1000));
    assert!(run.candidates().iter().any(|own| own.level == 3));
    let kept: usize = run.sstables.iter().map(|own| own.keys.len()).sum();
    assert!(kept < 20_000 * 3 / 2, "{kept} of 20000 keys: little is kept twice");
    assert!(run.amplification() < 20.0, "written {:.1} times over", run.amplification());
}

#[test]
fn keys_that_come_in_order_are_not_written_again_and_again() {
    let size = (1000.0 / 1_048_576.0).to_string();
    let mut run =
        Run::new(&[("class", "LeveledCompactionStrategy"), ("sstable_size_in_mb", &size), ("fanout_size", "4")]);
    for flush in 0..300 {
        run.flush((0..100).map(|i| (flush * 100 + i, flush)).collect());
    }
    assert!(run.candidates().iter().any(|own| own.level == 3));
    assert!(run.moved > 20, "{} were moved", run.moved);
    assert!(run.amplification() < 4.0, "written {:.1} times over", run.amplification());
}

#[test]
fn each_old_window_becomes_one_sstable() {
    let mut run = Run::new(&[
        ("class", "TimeWindowCompactionStrategy"),
        ("compaction_window_unit", "HOURS"),
        ("min_sstable_size", "0"),
    ]);
    for flush in 0..240 {
        run.flush((0..100).map(|i| (spread(flush * 100 + i), flush * HOUR / 24)).collect());
    }
    let mut windows: BTreeMap<i64, usize> = BTreeMap::new();
    for own in run.candidates() {
        *windows.entry(own.newest / HOUR).or_default() += 1;
    }
    assert_eq!(windows.len(), 10);
    assert!(windows.iter().all(|(window, sstables)| *sstables == 1 || *window == 9), "{windows:?}");
    assert!(run.amplification() < 4.5, "written {:.1} times over", run.amplification());
}
