//! CPU and memory of processes, from /proc.

use crate::tally::{Report, rounded};
use serde_json::json;
use std::fs;
use std::time::Instant;

/// CPU times are in units of this many per second, whatever the kernel's own tick.
const TICKS_PER_S: f64 = 100.0;

/// The CPU that was used since the meter started.
pub struct Meter {
    servers: Vec<String>,
    since: Instant,
    before: Ticks,
}

#[derive(Default)]
struct Ticks {
    client: u64,
    servers: u64,
    machine: u64,
}

impl Ticks {
    fn now(servers: &[String]) -> Self {
        Ticks {
            client: of_process(&read("/proc/self/stat")),
            servers: servers.iter().map(|pid| of_process(&read(&format!("/proc/{pid}/stat")))).sum(),
            machine: of_machine(&read("/proc/stat")),
        }
    }
}

impl Meter {
    /// `servers` are process ids.
    pub fn start(servers: &[String]) -> Self {
        Meter { servers: servers.to_vec(), since: Instant::now(), before: Ticks::now(servers) }
    }

    /// Adds the mean numbers of busy cores. `other_cpu_cores` is the use of all other processes: a
    /// high value means that something else disturbed the measurement.
    pub fn report(&self, report: &mut Report) {
        let now = Ticks::now(&self.servers);
        let seconds = self.since.elapsed().as_secs_f64();
        let cores = |now: u64, before: u64| now.saturating_sub(before) as f64 / TICKS_PER_S / seconds;
        let client = cores(now.client, self.before.client);
        report.insert("client_cpu_cores".into(), json!(rounded(client, 2)));
        if self.servers.is_empty() {
            return;
        }
        let servers = cores(now.servers, self.before.servers);
        let other = cores(now.machine, self.before.machine) - client - servers;
        let mib: u64 = self.servers.iter().map(|pid| resident_mib(&read(&format!("/proc/{pid}/status")))).sum();
        report.insert("server_cpu_cores".into(), json!(rounded(servers, 2)));
        report.insert("other_cpu_cores".into(), json!(rounded(other.max(0.0), 2)));
        report.insert("server_rss_mib".into(), json!(mib));
    }
}

/// A file's text, empty when its process ended.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// User and system time of /proc/PID/stat. The name before the last `)` may have spaces.
fn of_process(stat: &str) -> u64 {
    let Some((_, fields)) = stat.rsplit_once(')') else { return 0 };
    fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// All times of the first line of /proc/stat except idle, waiting for disks, and guests, which
/// user time includes.
fn of_machine(stat: &str) -> u64 {
    let first = stat.lines().next().unwrap_or_default();
    let times: Vec<u64> = first.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    times.iter().take(8).sum::<u64>() - times.iter().skip(3).take(2).sum::<u64>()
}

fn resident_mib(status: &str) -> u64 {
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found() {
        assert_eq!(of_process("12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 500 70 1 1"), 570);
        assert_eq!(of_process(""), 0);
        assert_eq!(of_machine("cpu  1 2 4 800 1600 8 16 32 64 128\ncpu0 1"), 63);
        assert_eq!(resident_mib("VmPeak: 1 kB\nVmRSS:\t    4096 kB\n"), 4);
        assert_eq!(resident_mib(""), 0);
    }

    #[test]
    fn this_process_is_measured() {
        let meter = Meter::start(&["self".into()]);
        let mut report = Report::new();
        meter.report(&mut report);
        assert!(report["server_rss_mib"].as_u64().unwrap() > 0);
    }
}
