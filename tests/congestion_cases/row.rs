//! A row: a measurement of a case, and the marks that it must reach.

use serde::Serialize;

/// The unit in which a value is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// A fraction or a multiple.
    Ratio,
    /// A fraction, in percent.
    Percent,
    Milliseconds,
    Number,
}

impl Unit {
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.3}"),
            Self::Percent => format!("{:.2} %", value * 100.0),
            Self::Milliseconds if value < 10.0 => format!("{value:.2} ms"),
            Self::Milliseconds => format!("{value:.0} ms"),
            Self::Number => format!("{value:.0}"),
        }
    }
}

/// The bound of a value.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
}

/// A value and its mark.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) bound: Bound,
    pub(crate) unit: Unit,
}

impl Check {
    pub(crate) fn at_least(name: &'static str, value: f64, bound: f64) -> Self {
        Self { name, value, bound: Bound::AtLeast(bound), unit: Unit::Ratio }
    }

    pub(crate) fn at_most(name: &'static str, value: f64, bound: f64) -> Self {
        Self { name, value, bound: Bound::AtMost(bound), unit: Unit::Ratio }
    }

    pub(crate) fn between(name: &'static str, value: f64, least: f64, most: f64) -> Self {
        Self { name, value, bound: Bound::Between(least, most), unit: Unit::Ratio }
    }

    /// Returns the check of a count that must be 0.
    pub(crate) fn none(name: &'static str, count: u64) -> Self {
        Self { name, value: count as f64, bound: Bound::AtMost(0.0), unit: Unit::Number }
    }

    pub(crate) fn in_percent(self) -> Self {
        Self { unit: Unit::Percent, ..self }
    }

    pub(crate) fn in_milliseconds(self) -> Self {
        Self { unit: Unit::Milliseconds, ..self }
    }

    /// Returns the distance to its mark, as a fraction of the mark; negative if it misses.
    fn margin(&self) -> f64 {
        let above = |bound: f64| self.value / bound - 1.0;
        let margin = match self.bound {
            Bound::AtLeast(bound) => above(bound),
            Bound::AtMost(0.0) => -self.value,
            Bound::AtMost(bound) => -above(bound),
            Bound::Between(least, most) => above(least).min(-above(most)),
        };
        if margin.is_nan() { f64::NEG_INFINITY } else { margin }
    }

    pub(crate) fn passes(&self) -> bool {
        self.margin() >= 0.0
    }

    pub(crate) fn mark(&self) -> String {
        let write = |bound| self.unit.write(bound);
        match self.bound {
            Bound::AtMost(0.0) => format!("no {}", self.name),
            Bound::AtLeast(bound) => format!("{} >= {}", self.name, write(bound)),
            Bound::AtMost(bound) => format!("{} <= {}", self.name, write(bound)),
            Bound::Between(least, most) => format!("{} {} to {}", self.name, write(least), write(most)),
        }
    }

    pub(crate) fn measured(&self) -> String {
        format!("{} {}", self.name, self.unit.write(self.value))
    }
}

/// The values measured with one seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) checks: Vec<Check>,
    /// The value that the model of TCP reaches in the same scene.
    pub(crate) tcp: Option<String>,
}

impl Outcome {
    pub(crate) fn new(checks: Vec<Check>) -> Self {
        Self { checks, tcp: None }
    }

    pub(crate) fn beside_tcp(checks: Vec<Check>, name: &str, value: f64, unit: Unit) -> Self {
        Self { checks, tcp: Some(format!("{name} {}", unit.write(value))) }
    }

    pub(crate) fn margin(&self) -> f64 {
        self.checks.iter().map(Check::margin).fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn passes(&self) -> bool {
        self.checks.iter().all(Check::passes)
    }
}

type Measure = Box<dyn Fn(u64) -> Outcome + Send + Sync>;

/// The measurement of a case with certain parameters.
pub(crate) struct Row {
    pub(crate) case: u8,
    pub(crate) name: &'static str,
    pub(crate) parameters: String,
    pub(crate) is_selected: bool,
    measure: Measure,
}

impl Row {
    pub(crate) fn measure(&self, seed: u64) -> Outcome {
        (self.measure)(seed)
    }

    /// Adds the row to the selection if `is_selected`.
    pub(crate) fn selected_if(self, is_selected: bool) -> Self {
        Self { is_selected, ..self }
    }
}

/// Number and name of a case.
#[derive(Clone, Copy)]
pub(crate) struct Case(pub(crate) u8, pub(crate) &'static str);

impl Case {
    /// Returns a row of the case; the measurement takes a seed.
    pub(crate) fn row(self, parameters: String, measure: impl Fn(u64) -> Outcome + Send + Sync + 'static) -> Row {
        let Self(case, name) = self;
        Row { case, name, parameters, is_selected: false, measure: Box::new(measure) }
    }
}
