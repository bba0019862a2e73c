//! Prometheus's text format.

use super::sample::Sample;
use crate::connection::latency::{self, HistogramNumbers};
use std::fmt::Write;

/// What kind of number it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// Takes one number: its further labels, and the number.
pub type Put<'a> = &'a mut dyn FnMut(&str, f64);

/// How a family's numbers are found in a sample.
pub enum Value {
    /// One number.
    One(fn(&Sample) -> f64),
    /// Several, each with its further labels such as `kind="QUERY"`.
    Each(fn(&Sample, Put)),
    /// A histogram of microseconds.
    Histogram(fn(&Sample) -> &HistogramNumbers),
}

/// Numbers of one name.
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Where it is found.
    pub value: Value,
}

/// The text of all families over all shards.
pub fn write(families: &[Family], samples: &[Sample]) -> String {
    let mut out = String::with_capacity(families.len() * (160 + samples.len() * 64));
    for family in families {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing into a string cannot fail.
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {kind}", family.name, family.help, family.name);
        for sample in samples {
            match &family.value {
                Value::One(read) => line(&mut out, family.name, sample, "", read(sample)),
                Value::Histogram(read) => histogram(&mut out, family.name, sample, read(sample)),
                Value::Each(read) => {
                    read(sample, &mut |labels, value| line(&mut out, family.name, sample, labels, value))
                }
            }
        }
    }
    out
}

fn histogram(out: &mut String, name: &str, sample: &Sample, numbers: &HistogramNumbers) {
    let buckets = format!("{name}_bucket");
    let mut below = 0;
    for (bucket, count) in numbers.buckets.iter().enumerate() {
        below += count;
        line(out, &buckets, sample, &format!("le=\"{}\"", latency::bound(bucket)), below as f64);
    }
    line(out, &buckets, sample, "le=\"+Inf\"", numbers.count as f64);
    line(out, &format!("{name}_sum"), sample, "", numbers.sum as f64);
    line(out, &format!("{name}_count"), sample, "", numbers.count as f64);
}

fn line(out: &mut String, name: &str, sample: &Sample, labels: &str, value: f64) {
    let comma = if labels.is_empty() { "" } else { "," };
    let _ = writeln!(out, "{name}{{shard=\"{}\"{comma}{labels}}} {value}", sample.shard);
}
