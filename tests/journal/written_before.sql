PRAGMA application_id=1953653098;
PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    key_id INTEGER NOT NULL REFERENCES keys (id),
    at REAL NOT NULL,
    move TEXT NOT NULL,
    state TEXT NOT NULL,
    intent_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    attempt TEXT,
    order_id TEXT,
    ending TEXT,
    by_whom TEXT,
    reason TEXT
);
INSERT INTO "history" VALUES(1,1,1714996800.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(2,1,1714996800.0,'keep','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(3,1,1714996800.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(4,1,1714996800.0,'doubt','in_doubt','intent-1',1,'a',NULL,NULL,NULL,'the answer names tx-cand');
INSERT INTO "history" VALUES(5,2,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(6,2,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(7,2,1714996801.0,'doubt','in_doubt','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(8,2,1714996801.0,'promise','in_doubt','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(9,3,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(10,3,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(11,3,1714996801.0,'create','created','intent-1',1,'a','tx-1',NULL,NULL,NULL);
INSERT INTO "history" VALUES(12,4,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(13,4,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(14,4,1714996801.0,'doubt','in_doubt','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(15,4,1714996801.0,'resolve','created','intent-1',1,'a','tx-2',NULL,'operator','seen');
INSERT INTO "history" VALUES(16,5,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(17,5,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(18,5,1714996801.0,'doubt','in_doubt','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(19,5,1714996801.0,'promise','in_doubt','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(20,5,1714996801.0,'resolve','created','intent-1',1,'a','tx-3',NULL,'operator','seen');
INSERT INTO "history" VALUES(21,6,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(22,6,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(23,6,1714996801.0,'free','free','intent-1',1,'a',NULL,'{"error":"Refused","fields":[],"in_vain":false,"outcome":"refused","refused":false,"status":422}',NULL,NULL);
INSERT INTO "history" VALUES(24,7,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(25,7,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(26,7,1714996801.0,'free','free','intent-1',1,'a',NULL,'{"error":"Refused","fields":[],"in_vain":false,"outcome":"refused","refused":false,"status":422}',NULL,NULL);
INSERT INTO "history" VALUES(27,8,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(28,9,1714996801.0,'claim','claimed','intent-1',1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "history" VALUES(29,9,1714996801.0,'mark','sending','intent-1',1,'a',NULL,NULL,NULL,NULL);
CREATE TABLE keys (
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes (id),
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    token TEXT NOT NULL,
    order_id TEXT,
    due_at REAL,
    ended_at REAL,
    body TEXT NOT NULL,
    intent TEXT,
    UNIQUE (scope, key)
);
INSERT INTO "keys" VALUES(1,1,'doubt','in_doubt','ea43d3bc50ca697f18d305a3504e0384',NULL,0.0,NULL,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996800.0,"lease_until":0.0,"receipts":{"hold":"r-hold","check":"r-check"},"held":null,"attempt":"a","sent_until":1714996800.0,"ending":null,"owed":[],"candidates":["tx-cand"]}','{"beneficiary":["Ben","Okri",null],"held":null,"id":"intent-1","key":"doubt","order":{"poster_username":"ada.eze@example.com","poster_recipient_username":"ben.okri@example.com","poster_currency":"NGN","poster_country":"NG","poster_amount":"155025.00","poster_payment_method_type":"nigerian_bank_payment","matcher_currency":"USD","matcher_country":"US","matcher_amount":"100.00","exchange_rate":"1550.25","external_order":{"current_account_balance":"900000.10","transaction_fee":250,"transaction_fee_currency":"NGN"}},"send_before":null}');
INSERT INTO "keys" VALUES(2,1,'promised','in_doubt','c7298dd041141e56cec5362e575d13d0',NULL,0.0,NULL,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":0.0,"receipts":{},"held":null,"attempt":"a","sent_until":1714996801.0,"ending":null,"owed":[],"promised":true,"untold":[]}','{"beneficiary":null,"held":null,"id":"intent-1","key":"k","order":{"poster_username":"ada.eze@example.com","poster_recipient_username":"ben.okri@example.com","poster_currency":"NGN","poster_country":"NG","poster_amount":"155025.00","poster_payment_method_type":"nigerian_bank_payment","matcher_currency":"USD","matcher_country":"US","matcher_amount":"100.00","exchange_rate":"1550.25","external_order":{"current_account_balance":"900000.10","transaction_fee":250,"transaction_fee_currency":"NGN"}},"send_before":null}');
INSERT INTO "keys" VALUES(3,1,'created','created','405019c3785b4da749d013ae4689ca16','tx-1',NULL,1714996801.0,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":0.0,"receipts":{},"held":null,"attempt":"a","sent_until":1714996831.0,"ending":null,"owed":[]}',NULL);
INSERT INTO "keys" VALUES(4,1,'resolved','created','4db505a395169507e7cd2915f40f17d0','tx-2',NULL,1714996801.0,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":0.0,"receipts":{"hold":"r-hold"},"held":null,"attempt":"a","sent_until":1714996801.0,"ending":null,"owed":[]}',NULL);
INSERT INTO "keys" VALUES(5,1,'untold','created','212584ab8fed2750a122b596d4abf554','tx-3',0.0,NULL,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":0.0,"receipts":{},"held":null,"attempt":"a","sent_until":1714996801.0,"ending":null,"owed":[],"promised":true,"untold":[{"error":null,"intent_id":"intent-1","order_id":"tx-3","outcome":"created","status":null}]}',NULL);
INSERT INTO "keys" VALUES(6,1,'refused','free','75d85b058bbe1b03bf04a359a92a4507',NULL,NULL,1714996801.0,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":0.0,"receipts":{},"held":null,"attempt":"a","sent_until":1714996831.0,"ending":{"error":"Refused","fields":[],"in_vain":false,"outcome":"refused","refused":false,"status":422},"owed":[]}',NULL);
INSERT INTO "keys" VALUES(7,1,'owing','free','a2b4a7ef19fc277c00a569659cabc217',NULL,1714996861.0,NULL,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":0.0,"receipts":{},"held":null,"attempt":"a","sent_until":1714996831.0,"ending":{"error":"Refused","fields":[],"in_vain":false,"outcome":"refused","refused":false,"status":422},"owed":[{"hook":"hold","intent":{"beneficiary":null,"held":null,"id":"intent-1","key":"k","order":{"poster_username":"ada.eze@example.com","poster_recipient_username":"ben.okri@example.com","poster_currency":"NGN","poster_country":"NG","poster_amount":"155025.00","poster_payment_method_type":"nigerian_bank_payment","matcher_currency":"USD","matcher_country":"US","matcher_amount":"100.00","exchange_rate":"1550.25","external_order":{"current_account_balance":"900000.10","transaction_fee":250,"transaction_fee_currency":"NGN"}},"send_before":null},"lease_until":1714996861.0,"receipt":"r-hold"}]}',NULL);
INSERT INTO "keys" VALUES(8,1,'claimed','claimed','28c837ba47aed57200196c4c7f31ebac',NULL,1714996861.0,NULL,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":1714996861.0,"receipts":{},"held":null,"attempt":null,"sent_until":0.0,"ending":null,"owed":[]}','{"beneficiary":null,"held":null,"id":"intent-1","key":"k","order":{"poster_username":"ada.eze@example.com","poster_recipient_username":"ben.okri@example.com","poster_currency":"NGN","poster_country":"NG","poster_amount":"155025.00","poster_payment_method_type":"nigerian_bank_payment","matcher_currency":"USD","matcher_country":"US","matcher_amount":"100.00","exchange_rate":"1550.25","external_order":{"current_account_balance":"900000.10","transaction_fee":250,"transaction_fee_currency":"NGN"}},"send_before":null}');
INSERT INTO "keys" VALUES(9,1,'sending','sending','d039754e2dc00eb5c240c54eb9355468',NULL,1714996861.0,NULL,'{"fingerprint":"d395cb13a0fa9839d460f01bf3cc4a3249616c5d7fd67dd4ddab0c1a7b7f5562","intent_id":"intent-1","client_made":false,"epoch":1,"hooks":["hold","check"],"claimed_at":1714996801.0,"lease_until":1714996861.0,"receipts":{},"held":null,"attempt":"a","sent_until":1714996831.0,"ending":null,"owed":[]}','{"beneficiary":null,"held":null,"id":"intent-1","key":"k","order":{"poster_username":"ada.eze@example.com","poster_recipient_username":"ben.okri@example.com","poster_currency":"NGN","poster_country":"NG","poster_amount":"155025.00","poster_payment_method_type":"nigerian_bank_payment","matcher_currency":"USD","matcher_country":"US","matcher_amount":"100.00","exchange_rate":"1550.25","external_order":{"current_account_balance":"900000.10","transaction_fee":250,"transaction_fee_currency":"NGN"}},"send_before":null}');
CREATE TABLE replies (key_id INTEGER PRIMARY KEY REFERENCES keys (id), reply BLOB NOT NULL);
INSERT INTO "replies" VALUES(3,X'7B226964223A202274782D31227D');
CREATE TABLE scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT INTO "scopes" VALUES(1,'https://service.example');
CREATE UNIQUE INDEX order_ids ON keys (scope, order_id) WHERE order_id IS NOT NULL;
CREATE INDEX waiting ON keys (scope, key) WHERE ended_at IS NULL;
CREATE INDEX ended ON keys (scope, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX steps ON history (key_id);
COMMIT;
