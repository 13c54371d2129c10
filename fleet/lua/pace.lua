-- The limits on requests in flight, one for each endpoint, and each worker's share of their sum.
-- A limit doubles each round of answers, or each second, up to the level that was last throttled
-- (slow start), then grows by steps (2 % of the ceiling).
-- Once per burst (a window of `burst_ms`) it falls in proportion to the share of answers that
-- were throttled, as DCTCP does (Alizadeh et al. 2010): limit * (1 - (1 - decrease) * share), so
-- that a few stray 429s cost little and a provider at its limit halves it. Floor 1.
-- Also the workers' heartbeats.
-- ARGV: worker, capacity, in flight, '1' to leave
-- → {this worker's share of the limit, the limit, live workers, 1 if every circuit is open}
local worker, capacity = ARGV[1], tonumber(ARGV[2])
local ceiling = run_number('concurrency')
if ceiling == 0 then return {0, 0, 0, 0} end -- no feeder has opened the run

local function roll(e)
    if NOW - e.window_at <= run_number('burst_ms') then return end
    if e.throttled > 0 then
        local share = e.throttled / (e.good + e.throttled)
        e.limit = math.max(1, e.limit * (1 - (1 - run_number('decrease')) * share))
        e.threshold = e.limit
    end
    e.window_at, e.good, e.throttled, e.asked_now, e.bad = NOW, 0, 0, 0, 0
end
local function grow(e)
    if e.throttled > 0 then return end
    local since_s = (NOW - e.grown_at) / 1000
    if e.limit < e.threshold then
        -- A 429 comes at once and an answer takes its time: a second of full use without one is
        -- as good a sign as a round of answers, and long answers do not make a slow start slow.
        local grown = e.limit + e.fresh
        if e.in_flight >= math.floor(e.limit) / 2 then
            grown = math.max(grown, e.limit * 2 ^ math.min(since_s, 1))
        end
        e.limit = math.min(e.threshold, grown)
        e.grown_at = NOW
    elseif e.fresh > 0 then
        -- One step a round of answers, or a second if that is longer.
        local step = math.max(1, ceiling / 50)
        e.limit = e.limit + math.min(step * e.fresh / e.limit, step * since_s)
        e.grown_at = NOW
    end
end

local limit, closed, all = 0, 0, routes()
for _, e in ipairs(all) do
    e.limit = math.max(1, math.min(e.limit, ceiling))
    e.threshold = math.min(e.threshold, ceiling)
    roll(e)
    if e.half == 0 then
        closed = closed + 1
        grow(e)
        e.limit = math.min(e.limit, ceiling)
    end
    e.fresh = 0
    write_state(e, {'limit', 'threshold', 'window_at', 'grown_at', 'good', 'throttled', 'fresh', 'asked_now', 'bad'})
    -- What is still in flight at an endpoint that takes no more holds slots of its own.
    limit = limit + math.max(e.limit, e.in_flight)
end
limit = math.max(1, math.min(limit, ceiling))
redis.call('HSET', RUN, 'limit', int(math.floor(limit)))

if ARGV[4] == '1' then redis.call('HDEL', WORKERS, worker)
else redis.call('HSET', WORKERS, worker, int(NOW) .. '|' .. ARGV[2] .. '|' .. ARGV[3]) end
local names, capacities, total = {}, {}, 0
local seen_all = redis.call('HGETALL', WORKERS)
for i = 1, #seen_all, 2 do
    local seen, cap = string.match(seen_all[i + 1], '(%d+)|(%d+)|')
    if NOW - tonumber(seen) > 30000 then redis.call('HDEL', WORKERS, seen_all[i])
    else
        names[#names + 1] = seen_all[i]
        capacities[seen_all[i]] = tonumber(cap)
        total = total + tonumber(cap)
    end
end
-- Cumulative rounding: the shares sum to the limit exactly. The order rotates, so that with a
-- limit below the number of workers each has its turn.
table.sort(names)
local before, share = 0, 0
local turn = #names > 0 and math.floor(NOW / 10000) % #names or 0
for i = 1, #names do
    local name = names[(i - 1 + turn) % #names + 1]
    local after = before + capacities[name]
    if name == worker then
        share = math.floor(limit * after / total) - math.floor(limit * before / total)
    end
    before = after
end
return {share, int(limit), #names, closed == 0 and #all > 0 and 1 or 0}
