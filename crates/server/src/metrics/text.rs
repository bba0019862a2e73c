//! Writes Prometheus's text format.

use super::sample::Sample;
use crate::connection::latency::{self, HistogramMetrics};
use std::fmt::Write;

/// The type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// Receives one value, with its additional labels.
pub type Put<'a> = &'a mut dyn FnMut(&str, f64);

/// How to read a metric from a sample.
pub enum Value {
    /// A single value.
    One(fn(&Sample) -> f64),
    /// Several values, each with additional labels such as `kind="QUERY"`.
    Each(fn(&Sample, Put)),
    /// A histogram of microseconds.
    Histogram(fn(&Sample) -> &HistogramMetrics),
}

/// A metric.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub help: &'static str,
    /// Its type.
    pub kind: Kind,
    /// How to read its values.
    pub value: Value,
}

/// The text of all metrics of all shards.
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

fn histogram(out: &mut String, name: &str, sample: &Sample, metrics: &HistogramMetrics) {
    let buckets = format!("{name}_bucket");
    let mut below = 0;
    for (bucket, count) in metrics.buckets.iter().enumerate() {
        below += count;
        line(out, &buckets, sample, &format!("le=\"{}\"", latency::bound(bucket)), below as f64);
    }
    line(out, &buckets, sample, "le=\"+Inf\"", metrics.count as f64);
    line(out, &format!("{name}_sum"), sample, "", metrics.sum as f64);
    line(out, &format!("{name}_count"), sample, "", metrics.count as f64);
}

fn line(out: &mut String, name: &str, sample: &Sample, labels: &str, value: f64) {
    let comma = if labels.is_empty() { "" } else { "," };
    let _ = writeln!(out, "{name}{{shard=\"{}\"{comma}{labels}}} {value}", sample.shard);
}
