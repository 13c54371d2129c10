-- The fleet's limit on requests in flight, held in common. It doubles each round of answers, or
-- each second, up to the level that was last throttled (slow start), then grows by steps (2 % of
-- the ceiling).
-- Once per burst (a window of `burst_ms`) it falls in proportion to the share of answers that
-- were throttled, as DCTCP does (Alizadeh et al. 2010): limit * (1 - (1 - decrease) * share), so
-- that a few stray 429s cost little and a provider at its limit halves it. Floor 1.
-- Also the workers' heartbeats and the breaker.
-- ARGV: worker, capacity, in flight, successes, throttles, failures since the last call, '1' to leave
-- → {this worker's share of the limit, the limit, live workers}
local worker, capacity = ARGV[1], tonumber(ARGV[2])
local successes, throttles, failures = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local ceiling = run_number('concurrency')
if ceiling == 0 then return {0, 0, 0, 0} end -- no feeder has opened the run

local p = redis.call('HMGET', PACING, 'limit', 'threshold', 'window_at', 'good', 'bad', 'grown_at')
local limit = math.max(1, math.min(tonumber(p[1] or run_number('start')), ceiling))
local threshold, window_at = tonumber(p[2] or ceiling), tonumber(p[3] or '0')
local good, bad = tonumber(p[4] or '0') + successes, tonumber(p[5] or '0') + throttles
local grown_at = tonumber(p[6] or int(NOW))
if NOW - window_at > run_number('burst_ms') then
    if bad > 0 then
        limit = math.max(1, limit * (1 - (1 - run_number('decrease')) * bad / (good + bad)))
        threshold = limit
    end
    window_at, good, bad = NOW, 0, 0
end
if throttles == 0 then
    if limit < threshold then
        -- A 429 comes at once and an answer takes its time: a second of full use without one is
        -- as good a sign as a round of answers, and long answers do not make a slow start slow.
        local grown = limit + successes
        if bad == 0 and run_number('in_flight') >= limit / 2 then
            grown = math.max(grown, limit * 2 ^ math.min((NOW - grown_at) / 1000, 1))
        end
        limit = math.min(threshold, grown)
        grown_at = NOW
    elseif successes > 0 then
        -- One step a round of answers, or a second if that is longer.
        local step = math.max(1, ceiling / 50)
        limit = limit + math.min(step * successes / limit, step * (NOW - grown_at) / 1000)
        grown_at = NOW
    end
end
limit = math.min(limit, ceiling)
redis.call('HSET', PACING, 'limit', tostring(limit), 'threshold', tostring(threshold),
    'window_at', int(window_at), 'good', int(good), 'bad', int(bad), 'grown_at', int(grown_at))

-- Breaker: nothing but failures, fleet-wide, for a while. Claims then pass one at a time.
if successes > 0 then
    redis.call('HSET', RUN, 'failures_in_a_row', 0, 'breaker_probe', 0)
elseif failures > 0 then
    local row = redis.call('HINCRBY', RUN, 'failures_in_a_row', failures)
    -- What is in flight may still succeed: a burst of failures at the start opens nothing.
    local enough = math.max(run_number('breaker_after'), run_number('in_flight'))
    if row >= enough and run_number('breaker_probe') == 0 then
        redis.call('HSET', RUN, 'breaker_probe', int(NOW + run_number('probe_ms')))
    end
end

if ARGV[7] == '1' then redis.call('HDEL', WORKERS, worker)
else redis.call('HSET', WORKERS, worker, int(NOW) .. '|' .. ARGV[2] .. '|' .. ARGV[3]) end
local names, capacities, total = {}, {}, 0
local all = redis.call('HGETALL', WORKERS)
for i = 1, #all, 2 do
    local seen, cap = string.match(all[i + 1], '(%d+)|(%d+)|')
    if NOW - tonumber(seen) > 30000 then redis.call('HDEL', WORKERS, all[i])
    else names[#names + 1] = all[i] capacities[all[i]] = tonumber(cap) total = total + tonumber(cap) end
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
return {share, int(limit), #names, run_number('breaker_probe') > 0 and 1 or 0}
