//! A subscriber of `tracing` that collects the events of this process.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::PATIENCE;

/// A collected event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its level.
    pub level: Level,
    /// Its target.
    pub target: String,
    /// Its text.
    pub text: String,
    /// Its other fields, as text.
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// Returns the text of a field; empty if the event does not have it.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Returns the names of the fields, in alphabetic order.
    pub fn names(&self) -> Vec<&str> {
        self.fields.keys().map(String::as_str).collect()
    }

    /// Returns the number in a field.
    pub fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }
}

type Hook = Box<dyn Fn(&Event) + Send + Sync>;

/// The events of this process.
#[derive(Clone)]
pub struct Events(Arc<Collected>);

struct Collected {
    events: Mutex<Vec<Event>>,
    arrived: Condvar,
    hook: Hook,
}

impl Events {
    /// Collects all events of this process from now on. Call it once in a process.
    pub fn collect() -> Self {
        Self::collect_with(|_| {})
    }

    /// Collects all events of this process from now on, and calls `hook` with each, on the thread that emits it.
    pub fn collect_with(hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        let (events, arrived) = (Mutex::default(), Condvar::new());
        let collected = Self(Arc::new(Collected { events, arrived, hook: Box::new(hook) }));
        tracing::subscriber::set_global_default(Registry::default().with(collected.clone())).expect("no other one");
        collected
    }

    /// Waits for an event with this target and text for which `fits` holds, and returns the first.
    #[track_caller]
    pub fn find(&self, target: &str, text: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let end = Instant::now() + PATIENCE;
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let is_wanted = |event: &&Event| event.target == target && event.text == text && fits(event);
            if let Some(event) = events.iter().find(is_wanted) {
                return event.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no event \"{text}\" of {target} among {events:#?}");
            events = self.0.arrived.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the events that have been emitted.
    pub fn all(&self) -> Vec<Event> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let text = fields.0.remove("message").unwrap_or_default();
        let event = Event { level: *metadata.level(), target: metadata.target().to_owned(), text, fields: fields.0 };
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        self.0.arrived.notify_all();
        (self.0.hook)(&event);
    }
}

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
