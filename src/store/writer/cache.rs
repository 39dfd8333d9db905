//! The live tasks that are held in memory, so that running them needs no reading. Their number and their bytes are
//! bounded.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use metrics::{Gauge, gauge};

use crate::domain::{task::Task, values::TaskId};

#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    pub tasks: NonZeroUsize,
    pub bytes: usize,
}

pub(super) struct Cache {
    tasks: LruCache<TaskId, Cached>,
    bytes: usize,
    most_bytes: usize,
    gauge: Gauge,
}

struct Cached {
    task: Arc<Task>,
    bytes: usize,
}

impl Cache {
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            tasks: LruCache::new(limits.tasks),
            bytes: 0,
            most_bytes: limits.bytes,
            gauge: gauge!("provost_cache_bytes"),
        }
    }

    pub fn get(&mut self, id: &TaskId) -> Option<&Arc<Task>> {
        self.tasks.get(id).map(|cached| &cached.task)
    }

    /// Adds a task, and evicts the least recently used ones. A task that is larger than the whole cache is not kept.
    pub fn put(&mut self, task: &Arc<Task>) {
        let bytes = task.memory();
        let cached = Cached {
            task: task.clone(),
            bytes,
        };
        self.bytes += bytes;
        // This is the previous state of the same task, or the task that was evicted.
        if let Some((_, replaced)) = self.tasks.push(task.id(), cached) {
            self.bytes -= replaced.bytes;
        }
        while self.bytes > self.most_bytes
            && let Some((_, oldest)) = self.tasks.pop_lru()
        {
            self.bytes -= oldest.bytes;
        }
        self.gauge.set(self.bytes as f64);
    }

    pub fn pop(&mut self, id: &TaskId) {
        if let Some(cached) = self.tasks.pop(id) {
            self.bytes -= cached.bytes;
            self.gauge.set(self.bytes as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use uuid::Uuid;

    use super::*;
    use crate::domain::{
        definition::{Accepted, Limits, Policies, parse_steps},
        task::{Details, Draft},
        template::Payload,
        values::{Priority, Timestamp},
    };

    fn cache(tasks: usize, bytes: usize) -> Cache {
        Cache::new(CacheLimits {
            tasks: NonZeroUsize::new(tasks).unwrap(),
            bytes,
        })
    }

    fn task(number: u128, input: usize) -> Arc<Task> {
        let steps = Payload::parse(r#"[{"name":"a","agent":"x"}]"#.to_owned()).unwrap();
        let (policies, limits) = (Policies::default(), Limits::default());
        let definition = parse_steps(&steps, "", &policies, &limits, &Accepted).unwrap();
        let details = Details {
            id: TaskId(Uuid::from_u128(number)),
            key: None,
            workflow: None,
            definition: Arc::new(definition),
            input: Payload::from_string(&"x".repeat(input)),
            labels: BTreeMap::new(),
            priority: Priority::default(),
            complete_within: None,
            start_at: None,
            trace: None,
            reply_to: None,
            parent: None,
            key_prefix: None,
        };
        Arc::new(Draft::submit(Arc::new(details), Timestamp::from_millis(1)).task)
    }

    fn kept(cache: &mut Cache, numbers: std::ops::Range<u128>) -> Vec<u128> {
        let is_kept = |number: &u128| cache.get(&TaskId(Uuid::from_u128(*number))).is_some();
        numbers.filter(is_kept).collect()
    }

    #[test]
    fn what_was_not_used_for_longest_makes_way_for_bytes() {
        let mut cache = cache(100, 250_000);
        for number in 0..5 {
            cache.put(&task(number, 100_000));
        }
        assert_eq!(kept(&mut cache, 0..5), [3, 4]);
        assert!(cache.bytes <= 250_000, "{}", cache.bytes);
    }

    #[test]
    fn one_that_is_larger_than_all_of_it_is_not_kept() {
        let mut cache = cache(100, 50_000);
        cache.put(&task(1, 10_000));
        cache.put(&task(2, 100_000));
        assert_eq!(kept(&mut cache, 0..3), []);
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn what_is_put_again_pushed_out_or_taken_away_is_counted_once() {
        let mut cache = cache(2, usize::MAX);
        for _ in 0..3 {
            cache.put(&task(1, 10_000));
        }
        let one = cache.bytes;
        assert!((10_000..20_000).contains(&one), "{one}");
        cache.put(&task(2, 10_000));
        cache.put(&task(3, 10_000));
        assert_eq!(kept(&mut cache, 0..4), [2, 3]);
        assert_eq!(cache.bytes, 2 * one);
        cache.pop(&TaskId(Uuid::from_u128(2)));
        cache.pop(&TaskId(Uuid::from_u128(2)));
        assert_eq!(cache.bytes, one);
    }
}
