//! Which clients watch which keys.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a client, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// Keys that clients watch (`WATCH`), and the clients whose keys have changed.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_key: BTreeMap<Vec<u8>, BTreeSet<ClientId>>,
    by_client: BTreeMap<ClientId, BTreeSet<Vec<u8>>>,
    changed: BTreeSet<ClientId>,
}

impl Watches {
    pub(crate) fn watch(&mut self, client: ClientId, key: &[u8]) {
        self.by_key.entry(key.to_vec()).or_default().insert(client);
        self.by_client
            .entry(client)
            .or_default()
            .insert(key.to_vec());
    }

    /// Ends all watches of a client.
    pub(crate) fn unwatch(&mut self, client: ClientId) {
        self.changed.remove(&client);
        for key in self.by_client.remove(&client).unwrap_or_default() {
            if let Some(clients) = self.by_key.get_mut(&key) {
                clients.remove(&client);
                if clients.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
    }

    /// The keys that a client watches.
    pub(crate) fn keys(&self, client: ClientId) -> Vec<Vec<u8>> {
        let keys = self.by_client.get(&client).into_iter().flatten();
        keys.cloned().collect()
    }

    /// Number of keys that a client watches.
    pub(crate) fn count(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    /// Notes that a key has changed.
    pub(crate) fn touch(&mut self, key: &[u8]) {
        if self.by_key.is_empty() {
            return;
        }
        let clients = self.by_key.get(key).into_iter().flatten();
        self.changed.extend(clients);
    }

    /// Notes that all keys have changed.
    pub(crate) fn touch_all(&mut self) {
        self.changed.extend(self.by_client.keys());
    }

    /// Reports whether a key of this client has changed since it began to watch.
    pub(crate) fn has_changed(&self, client: ClientId) -> bool {
        self.changed.contains(&client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_for_its_watchers() {
        let (one, two) = (ClientId(1), ClientId(2));
        let mut watches = Watches::default();
        watches.watch(one, b"a");
        watches.watch(one, b"b");
        watches.watch(two, b"b");
        watches.touch(b"a");
        assert!(watches.has_changed(one) && !watches.has_changed(two));
        watches.unwatch(one);
        assert!(!watches.has_changed(one));
        watches.touch(b"b");
        assert!(watches.has_changed(two) && !watches.has_changed(one));
        watches.unwatch(two);
        assert!(watches.by_key.is_empty() && watches.by_client.is_empty());
    }
}
